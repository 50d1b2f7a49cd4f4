#include "weft/rank_link/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/variables.h"

namespace weft::rank_link {
namespace {

// As recv(), without waiting.
ssize_t receive(int end, char* text, std::size_t size, int flags) {
  ssize_t got;
  do {
    got = ::recv(end, text, size, flags | MSG_DONTWAIT);
    // ECONNRESET: the peer has ended and left messages unread. The system says so once, before the
    // last messages of the peer.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  return got;
}

}  // namespace

std::pair<Link, Link> Link::make() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    throw Error(Errc::kUnavailable, std::string("no socket for a rank: ") + std::strerror(errno));
  // The buffer limits a text. The system allows about 200 KiB by default.
  constexpr int kBuffer = 1 << 20;
  for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &kBuffer, sizeof kBuffer);
  return {Link(UniqueFd(ends[0])), Link(UniqueFd(ends[1]))};
}

bool Link::tell(const std::string& verb, const std::string& value) noexcept {
  const std::string text = value.empty() ? verb : verb + " " + value;
  ssize_t sent;
  do {
    sent = ::send(end_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0 && errno == EMSGSIZE)
    log_error("a message \"" + verb + "\" of " + std::to_string(text.size()) +
              " bytes is too long for the link of a rank, and is not sent");
  return sent == static_cast<ssize_t>(text.size());
}

std::optional<Message> Link::next() noexcept {
  if (ended_) return std::nullopt;
  // The length first, since a shorter buffer would cut the text.
  const ssize_t size = receive(end_.get(), nullptr, 0, MSG_PEEK | MSG_TRUNC);
  if (size <= 0) {
    ended_ = size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    return std::nullopt;
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  if (receive(end_.get(), text.data(), text.size(), 0) != size) return std::nullopt;
  const auto blank = text.find(' ');
  return Message{text.substr(0, blank), blank == std::string::npos ? "" : text.substr(blank + 1)};
}

std::optional<Message> Link::wait(Deadline deadline) noexcept {
  for (;;) {
    if (auto message = next()) return message;
    if (ended_ || deadline.passed()) return std::nullopt;
    pollfd readable{end_.get(), POLLIN, 0};
    ::poll(&readable, 1, deadline.left_ms());
  }
}

Link* launcher() noexcept {
  static Link* const link = []() -> Link* {
    const auto fd = number_variable(kLinkVariable);
    if (!fd) return nullptr;
    int kind = 0;
    socklen_t size = sizeof kind;
    const bool is_link =
        ::getsockopt(*fd, SOL_SOCKET, SO_TYPE, &kind, &size) == 0 && kind == SOCK_SEQPACKET;
    return is_link ? new Link(UniqueFd(*fd)) : nullptr;  // lives as long as the process
  }();
  return link;
}

}  // namespace weft::rank_link
