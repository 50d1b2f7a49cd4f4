// Closes connections without losing data: the last frames are sent before the sockets close.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>

#include "weft/net/tcp/internal/engine.h"

namespace weft::net::internal {
namespace {

// True if the other side is still connected and has not acknowledged all data. Meanwhile its input
// is discarded: unread bytes would turn the close into a reset, and a reset can overtake sent data.
bool on_the_way(int fd) {
  std::byte scratch[16 * 1024];
  ssize_t n = 0;
  while ((n = ::recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT)) > 0) {
  }
  if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

}  // namespace

// True if all connected peers have acknowledged every frame.
bool Engine::all_sent() {
  bool sent = true;
  for (int peer = 0; peer < world(); ++peer) {
    Peer& other = peers_[peer];
    if (other.streams.empty()) continue;
    pump_stream(peer, other.streams.size() - 1);
    if (!other.control.empty() && other.streams.back().writable) sent = false;
    if (!other.control.empty()) continue;
    for (const Stream& stream : other.streams) {
      const int fd = stream.connection->fd();
      ::shutdown(fd, SHUT_WR);
      if (stream.open && on_the_way(fd)) sent = false;
    }
  }
  return sent;
}

void Engine::leave(Deadline deadline) {
  for (int peer = 0; peer < world(); ++peer) push_control(peer, {.type = FrameType::kGoodbye});
  stop();
  while (!all_sent() && !deadline.passed()) ::poll(nullptr, 0, 1);
}

}  // namespace weft::net::internal
