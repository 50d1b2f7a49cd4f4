// Unix sockets between processes of one host and one user, and memory that they share.
//
// The names of the sockets are abstract and random: a process of another host that tries such a
// name finds nobody, so a name also tells whether two processes are on the same host.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "weft/base/deadline.h"
#include "weft/base/file.h"

namespace weft::net::internal {

struct LocalListener {
  UniqueFd fd;       // non-blocking
  std::string name;  // "@weft-<what>-" and 128 random bits
};
// Throws Error(kUnavailable) if the system has no socket left.
LocalListener listen_locally(const std::string& what);

// Accepts the next connection of this user or of root, non-blocking. Others of this host may
// connect to an abstract socket; they are refused with a warning that names `what`. None: errno
// says why.
UniqueFd accept_own_user(int listener, const std::string& what);

// Connects to the socket with this name, non-blocking afterwards. None if nobody listens there, as
// on another host.
UniqueFd connect_locally(const std::string& name);

// Sends one byte and, if it is not negative, a descriptor. False: the connection has ended.
bool send_descriptor(int socket, int fd);
// The first byte of a connection, and the descriptor that came with it.
struct FirstByte {
  bool arrived = false;
  bool ended = false;
  UniqueFd fd;
};
FirstByte receive_descriptor(int socket);

// Anonymous memory of fixed size that other processes can map. It is sealed: a peer cannot shrink
// it, so that reading it never fails.
class SharedMemory {
 public:
  SharedMemory() = default;
  // Zeros. Throws Error(kUnavailable).
  static SharedMemory create(std::size_t bytes);
  // Maps the memory of another process. Throws Error(kCorrupt) if it is not sealed.
  static SharedMemory attach(UniqueFd fd);
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

  // Moves the contents to new memory at the same address. Peers keep the old memory, so their
  // writes are never seen here. The caller's other threads must not write meanwhile. Throws
  // Error(kUnavailable) without changes if there is no memory.
  void renew();

 private:
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace weft::net::internal
