#include "weft/net/tcp/internal/connection.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>

namespace weft::net::internal {

Connection::Connection(Fd fd, std::uint16_t stream, std::uint32_t epoch)
    : fd_(std::move(fd)), out_(stream, epoch), in_(stream, epoch) {}

void Connection::allow_zero_copy(ZeroCopy mode) {
  const int on = 1;
  const bool can = mode != ZeroCopy::kNever &&
                   ::setsockopt(fd_.get(), SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
  if (!can && mode == ZeroCopy::kAlways)
    throw Error(Errc::kUnavailable,
                "this kernel does not support zero-copy sends: " + errno_text(errno));
  if (can) zero_copy_ = ZeroCopySends(mode);
}

bool Connection::is_zero_copy(std::span<const std::byte> part) const {
  const std::less<> before;
  return zero_copy_.on() && !before(part.data(), zero_copy_payload_.data()) &&
         before(part.data(), zero_copy_payload_.data() + zero_copy_payload_.size());
}

// Flags and number of parts of the next send: a zero-copy payload is sent by its own call, after
// the header before it.
int Connection::take_turn(std::span<const std::span<const std::byte>> parts,
                          std::size_t& count) const {
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_zero_copy(parts[i])) continue;
    count = std::max<std::size_t>(i, 1);
    return i == 0 ? MSG_ZEROCOPY : MSG_MORE;
  }
  return 0;
}

bool Connection::collect() {
  bool any = false;
  while (zero_copy_.outstanding()) {
    alignas(cmsghdr) std::array<char, 256> control;
    msghdr message{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const auto n = ::recvmsg(fd_.get(), &message, MSG_ERRQUEUE | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      const bool v4 = header->cmsg_level == SOL_IP && header->cmsg_type == IP_RECVERR;
      const bool v6 = header->cmsg_level == SOL_IPV6 && header->cmsg_type == IPV6_RECVERR;
      if (!v4 && !v6) continue;
      sock_extended_err said;
      std::memcpy(&said, CMSG_DATA(header), sizeof(said));
      if (said.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      zero_copy_.count_completed(said.ee_info, said.ee_data,
                                 (said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0);
      any = true;
    }
  }
  return any;
}

void Connection::cut() {
  // connect(2) to AF_UNSPEC dissolves the association; TCP sends a reset.
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  if (::connect(fd_.get(), &nowhere, sizeof(nowhere)) != 0) ::shutdown(fd_.get(), SHUT_RDWR);
}

Connection::Io Connection::closed(int error) {
  cause_ = error == 0 ? "its connection was closed" : "its connection broke: " + errno_text(error);
  return Io::kClosed;
}

Connection::Io Connection::flush(std::size_t& frames) {
  while (!out_.empty()) {
    std::array<std::span<const std::byte>, 16> parts;
    std::array<iovec, 16> pieces;
    std::size_t count = out_.next(parts);
    const int how = take_turn(parts, count);
    for (std::size_t i = 0; i < count; ++i)
      pieces[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const auto n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | how);
    if (n >= 0) {
      if (how == MSG_ZEROCOPY) zero_copy_.count_sent();
      frames += out_.advance(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Io::kBlocked;
    } else if (errno == ENOBUFS && how == MSG_ZEROCOPY) {
      zero_copy_.refused();
      zero_copy_payload_ = {};
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
