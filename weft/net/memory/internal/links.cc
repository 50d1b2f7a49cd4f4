#include "weft/net/memory/internal/links.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::net::internal {
namespace {

struct LinkHello {
  std::uint64_t magic = 0x77656674'6c696e6bULL;
  std::int32_t rank = 0;
  std::uint64_t heap_bytes = 0;
};

std::string system_error(const char* call) {
  return std::string(call) + ": " + std::strerror(errno);
}

[[noreturn]] void fail_link(Errc code, int rank, int peer, const std::string& why) {
  throw Error(code, "linking with rank " + std::to_string(peer) + " of this host: " + why,
              {"connect", rank, peer});
}

socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool same_user(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == geteuid();
}

void set_timeout(int fd, const Deadline& deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::microseconds>(deadline.left()).count() + 1000;
  const timeval value{left / 1'000'000, left % 1'000'000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof value);
}

bool send_hello(int fd, const LinkHello& hello, int heap_fd) {
  iovec data{const_cast<LinkHello*>(&hello), sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &heap_fd, sizeof(int));
  return sendmsg(fd, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello);
}

// The received descriptor. -1 if the message was not a LinkHello with a descriptor.
int recv_hello(int fd, LinkHello& hello) {
  iovec data{&hello, sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  int heap_fd = -1;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    std::memcpy(&heap_fd, CMSG_DATA(header), sizeof(int));
  }
  if (got == static_cast<ssize_t>(sizeof hello) && hello.magic == LinkHello{}.magic) return heap_fd;
  if (heap_fd >= 0) close(heap_fd);
  return -1;
}

std::shared_ptr<Region> attach_once(int fd, std::size_t bytes) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Region>>;
  struct stat status {};
  fstat(fd, &status);
  std::lock_guard lock(mutex);
  auto& slot = (*known)[{status.st_dev, status.st_ino}];
  if (auto region = slot.lock()) {
    close(fd);
    return region;
  }
  auto region = std::make_shared<Region>(Region::attach(fd, bytes));
  slot = region;
  return region;
}

int connect_to(const std::string& name, const Deadline& deadline) {
  sockaddr_un address;
  if (name.size() > sizeof address.sun_path - 1) {
    errno = ENAMETOOLONG;
    return -1;
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  set_timeout(fd, deadline);
  const socklen_t length = abstract_address(name, address);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && same_user(fd)) return fd;
  close(fd);
  return -1;
}

// Accepts connections until a process of the same user sends a valid hello. Other connections are
// dropped.
Link accept_one(int listener, LinkHello& hello, const LinkOptions& options,
                const Deadline& deadline) {
  while (!deadline.passed()) {
    pollfd waiting{listener, POLLIN, 0};
    if (poll(&waiting, 1, std::min(deadline.left_ms(), 50)) <= 0) {
      const auto lost = options.lost_peer ? options.lost_peer() : std::nullopt;
      if (lost) fail_link(Errc::kPeerLost, options.rank, *lost, "it ended before it was connected");
      continue;
    }
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    set_timeout(fd, Deadline::in(std::min<std::chrono::nanoseconds>(deadline.left(),
                                                                    std::chrono::seconds(5))));
    const int heap_fd = same_user(fd) ? recv_hello(fd, hello) : -1;
    if (heap_fd >= 0 && hello.rank > options.rank &&
        hello.rank < static_cast<int>(options.names.size()) &&
        send_hello(fd, {.rank = options.rank, .heap_bytes = options.heap_bytes}, options.heap_fd)) {
      return {fd, attach_once(heap_fd, hello.heap_bytes)};
    }
    if (heap_fd >= 0) close(heap_fd);
    close(fd);
  }
  return {};
}

}  // namespace

LinkListener::LinkListener() {
  name_ = "weft-";
  for (const char digits : random_bytes(16)) {
    const auto byte = static_cast<unsigned char>(digits);
    name_ += "0123456789abcdef"[byte >> 4];
    name_ += "0123456789abcdef"[byte & 15];
  }
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address;
  const socklen_t length = abstract_address(name_, address);
  if (fd_ < 0 || bind(fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(fd_, 4096) != 0) {
    const std::string why = system_error("listening on a unix socket");
    if (fd_ >= 0) close(fd_);
    throw Error(Errc::kUnavailable, why);
  }
}

LinkListener::~LinkListener() { close(fd_); }

std::vector<Link> link_all(const LinkListener& listener, const LinkOptions& options) {
  const auto deadline = Deadline::in(options.timeout);
  const int world = static_cast<int>(options.names.size());
  std::vector<Link> links(options.names.size());
  // The higher rank connects to the lower one. All listeners exist before the names are exchanged.
  for (int peer = 0; peer < options.rank; ++peer) {
    const int fd = connect_to(options.names[static_cast<std::size_t>(peer)], deadline);
    if (fd < 0) fail_link(Errc::kUnavailable, options.rank, peer, system_error("connect"));
    LinkHello hello;
    const bool sent =
        send_hello(fd, {.rank = options.rank, .heap_bytes = options.heap_bytes}, options.heap_fd);
    const int heap_fd = sent ? recv_hello(fd, hello) : -1;
    if (heap_fd < 0) {
      close(fd);
      fail_link(Errc::kUnavailable, options.rank, peer,
                "it closed the connection or did not answer in time");
    }
    links[static_cast<std::size_t>(peer)] = {fd, attach_once(heap_fd, hello.heap_bytes)};
  }
  for (int left = world - 1 - options.rank; left > 0; --left) {
    LinkHello hello;
    Link link = accept_one(listener.fd(), hello, options, deadline);
    if (link.fd < 0) {
      int missing = options.rank + 1;
      while (missing < world && links[static_cast<std::size_t>(missing)].fd >= 0) ++missing;
      fail_link(Errc::kTimeout, options.rank, missing, "it did not connect in time");
    }
    links[static_cast<std::size_t>(hello.rank)] = std::move(link);
  }
  return links;
}

bool is_closed(const Link& link) {
  pollfd state{link.fd, POLLRDHUP, 0};
  return link.fd >= 0 && poll(&state, 1, 0) > 0 &&
         (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

std::optional<int> first_closed(const std::vector<Link>& links,
                                const std::function<bool(int)>& departed) {
  for (std::size_t peer = 0; peer < links.size(); ++peer) {
    if (is_closed(links[peer]) && !departed(static_cast<int>(peer))) return static_cast<int>(peer);
  }
  return std::nullopt;
}

}  // namespace weft::net::internal
