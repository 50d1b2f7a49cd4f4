// Sockets: addresses as "host:port" text, and the options of every connection
// of weft.
#pragma once

#include <chrono>
#include <string>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft::net::internal {

using Fd = UniqueFd;

// strerror() for any thread.
std::string errno_text(int error);

// Returns the numeric address of `where`: itself if it is an address, else this host's first
// address in the network ("10.0.0.0/8") or of the interface with that name, IPv4 first.
// Error(kInvalidArgument) lists the addresses of this host.
std::string resolve_interface(const std::string& where);
bool is_wildcard(const std::string& host);

// Creates a non-blocking listening socket. `port` 0 takes a free port. If the system's congestion
// control is bbr, uses reno until fit_to_distance(). Throws Error(kInvalidArgument) if this host
// does not have the address or does not permit the port, else Error(kUnavailable). Both name the
// address.
Fd listen_on(const std::string& host, int port);
// "host:port", or "[host]:port" if the host contains a colon.
std::string join_address(const std::string& host, int port);
int bound_port(const Fd& listener);
// Returns the next connection and its source address. No descriptor if there is none; `error` then
// gets errno.
Fd accept_on(const Fd& listener, std::string& from, int& error);
// Starts to connect, with the same congestion control as listen_on(). Throws
// Error(kInvalidArgument) for an invalid address and Error(kUnavailable) if the connection is
// refused at once, or as fail_without_descriptors().
Fd begin_connect(const std::string& address);
// For a process that has reached its limit of open files: throws Error(kUnavailable) with the
// operation kNoDescriptors. Another try would not help.
constexpr const char* kNoDescriptors = "open a socket";
[[noreturn]] void fail_without_descriptors();
// Sets no delay, keep-alive probes, and a timeout of `silence` for unacknowledged data.
void set_options(const Fd& fd, std::chrono::milliseconds silence);
// Sets the congestion control of a connection. Throws Error(kBadConfig) if this process may not use
// it.
void set_congestion(const Fd& fd, const std::string& name);
std::string congestion_of(const Fd& fd);
// Tunes an established connection by the round-trip time to the peer.
//
// Below 1 ms, it limits the data in flight, so that the kernel's copies stay in the caches. The
// limit is the amount that 100 Gbit/s carry in a round trip, at least 256 KiB. The connection also
// keeps reno instead of bbr. Every system has reno, and it recovers from a loss in a few round
// trips, while bbr's timers between packets cost more than such a link. Both together halve the
// time of 25 MB, and fill a shaped link equally well (bench/network).
//
// From 1 ms on, it sets the system's congestion control.
void fit_to_distance(const Fd& fd);

}  // namespace weft::net::internal
