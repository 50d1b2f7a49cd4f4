#include "weft/net/internal/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>

namespace weft::net::internal {

Connection::Connection(Fd fd, std::uint16_t stream, std::uint32_t epoch) : fd_(std::move(fd)), out_(stream, epoch), in_(stream, epoch) {}

Connection::Io Connection::closed(int error) {
  cause_ = error == 0 ? "its connection was closed" : "its connection broke: " + errno_text(error);
  return Io::kClosed;
}

Connection::Io Connection::flush(std::size_t& frames) {
  while (!out_.empty()) {
    std::array<std::span<const std::byte>, 16> parts;
    std::array<iovec, 16> pieces;
    const std::size_t count = out_.next(parts);
    for (std::size_t i = 0; i < count; ++i) pieces[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const auto n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n >= 0) {
      frames += out_.advance(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Io::kBlocked;
    } else if (errno != EINTR) {
      return closed(errno);
    }
  }
  return Io::kMoved;
}

Connection::Io Connection::fill(bool& drained) {
  const FrameReader::Space space = in_.space();
  std::array<iovec, 2> pieces;
  int count = 0;
  for (const auto& part : space) {
    if (!part.empty()) pieces[count++] = {part.data(), part.size()};
  }
  ssize_t n = 0;
  do {
    n = ::readv(fd_.get(), pieces.data(), count);
  } while (n < 0 && errno == EINTR);
  drained = true;
  if (n == 0) return closed(0);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Io::kBlocked : closed(errno);
  drained = static_cast<std::size_t>(n) < space[0].size() + space[1].size();
  in_.filled(static_cast<std::size_t>(n));
  return Io::kMoved;
}

}  // namespace weft::net::internal
