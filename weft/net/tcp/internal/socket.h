// Sockets: a descriptor that closes itself, addresses as "host:port" text, and the options of every
// connection of weft.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "weft/base/error.h"

namespace weft::net::internal {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

// strerror() for any thread.
std::string errno_text(int error);

// The numeric address of `where`: itself when it is one, else this host's first address in the
// network ("10.0.0.0/8"), or of the interface of that name; IPv4 goes first.
// Error(kInvalidArgument) shows what there is.
std::string resolve_interface(const std::string& where);
bool is_wildcard(const std::string& host);

// Non-blocking sockets. listen_on throws Error(kUnavailable) naming the address; `port` 0 takes a
// free one.
Fd listen_on(const std::string& host, int port);
// "host:port", or "[host]:port" where the host has a colon.
std::string join_address(const std::string& host, int port);
int bound_port(const Fd& listener);
// The next connection, and where it comes from; no descriptor when there is none. `error` gets
// errno then.
Fd accept_on(const Fd& listener, std::string& from, int& error);
// Begins to connect, as listen_on() without bbr until fit_to_distance(); an address that is not one
// is Error(kInvalidArgument), a connection refused at once Error(kUnavailable).
Fd begin_connect(const std::string& address);
// No delay, keep-alive probes, and an end to unacknowledged data after `silence`.
void set_options(const Fd& fd, std::chrono::milliseconds silence);
// The congestion control of a connection. Error(kBadConfig) where this process may not have it.
void set_congestion(const Fd& fd, const std::string& name);
std::string congestion_of(const Fd& fd);
// Of a connection that is made, by how far the peer is. Less than a millisecond there and back:
// what is under way is held to what 100 Gbit/s carry in a round trip, 256 KiB at least, so that the
// kernel's copies stay in the caches; and where the system's control is bbr it is reno, which every
// system has: bbr's timers between packets cost more than such a link, and reno recovers from a
// loss in few round trips there (bench/network: both together halve the time of 25 MB, and fill a
// shaped link just as well). Farther: the system's control.
void fit_to_distance(const Fd& fd);

}  // namespace weft::net::internal
