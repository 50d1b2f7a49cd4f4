// Every pair of ranks gets one socket, which the higher rank dials. Rank r first dials all lower
// ranks, one after the other, and waits for the answer of each. Then it accepts the higher ones.
// Rank 0 only accepts, so rank 1 gets its answer, then rank 2, and so on: no cycle of waits. A
// connection waits in the listener's backlog until its rank accepts.
//
// Both sides send one hello with the descriptor of their heap. After that, the socket carries no
// data. It stays open so that its end shows the death of the process.
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
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/net/internal/descriptors.h"

namespace weft::net::internal {
namespace {

struct LinkHello {
  std::uint64_t magic = 0x77656674'6c696e6bULL;
  std::int32_t rank = 0;
  std::uint32_t failed = 0;  // 1: this rank has failed, and waits for nobody
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

// SA_RESTART has no effect on sockets that have a timeout, so a signal interrupts each call.
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
  const auto sent = TEMP_FAILURE_RETRY(sendmsg(fd, &message, MSG_NOSIGNAL));
  return sent == static_cast<ssize_t>(sizeof hello);
}

struct Received {
  bool whole = false;  // `hello` is a LinkHello
  LinkHello hello;
  int heap_fd = -1;  // -1: none arrived
};

Received recv_hello(int fd) {
  Received received;
  iovec data{&received.hello, sizeof received.hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = TEMP_FAILURE_RETRY(recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL));
  if (got > 0) received.heap_fd = take_descriptor(message).release();
  received.whole = got == static_cast<ssize_t>(sizeof received.hello) &&
                   received.hello.magic == LinkHello{}.magic;
  return received;
}

void drop(int fd, const Received& received) {
  if (received.heap_fd >= 0) close(received.heap_fd);
  close(fd);
}

std::shared_ptr<Region> attach_once(int fd, std::size_t bytes) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Region>>;
  struct stat status {};
  fstat(fd, &status);
  std::lock_guard lock(mutex);
  // A process is in several groups with the same peers. One mapping of a heap serves all: address
  // space of this size must not be taken for each group.
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
  const auto connected =
      TEMP_FAILURE_RETRY(connect(fd, reinterpret_cast<sockaddr*>(&address), length));
  if (connected == 0 && same_user(fd)) return fd;
  close(fd);
  return -1;
}

// Accepts connections until a rank of the host sends its hello. Other connections are dropped.
std::pair<int, Link> accept_one(int listener, const LinkOptions& options,
                                const Deadline& deadline) {
  while (!deadline.passed()) {
    pollfd waiting{listener, POLLIN, 0};
    if (poll(&waiting, 1, std::min(deadline.left_ms(), 50)) <= 0) {
      const auto lost = options.lost_peer ? options.lost_peer() : std::nullopt;
      if (lost) fail_link(Errc::kPeerLost, options.rank, *lost, "it ended before it was connected");
      continue;
    }
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        fail_link(Errc::kUnavailable, options.rank, options.rank + 1, system_error("accept"));
      continue;
    }
    set_timeout(fd, Deadline::in(std::min<std::chrono::nanoseconds>(deadline.left(),
                                                                    std::chrono::seconds(5))));
    const Received received = same_user(fd) ? recv_hello(fd) : Received{};
    const int peer = received.hello.rank;
    if (!received.whole || peer <= options.rank || peer >= static_cast<int>(options.names.size())) {
      drop(fd, received);
      continue;
    }
    if (received.hello.failed != 0 || received.heap_fd < 0) {
      drop(fd, received);
      fail_link(Errc::kUnavailable, options.rank, peer,
                received.hello.failed != 0
                    ? "it could not link with all ranks"
                    : "its memory did not arrive; raise the limit of open files (ulimit -n)");
    }
    if (send_hello(fd, {.rank = options.rank, .heap_bytes = options.heap_bytes}, options.heap_fd))
      return {peer, {fd, attach_once(received.heap_fd, received.hello.heap_bytes)}};
    drop(fd, received);
  }
  return {};
}

// The higher rank connects to the lower one. All listeners exist before the names are exchanged.
void link_to_lower(std::vector<Link>& links, const LinkOptions& options, const Deadline& deadline) {
  for (int peer = 0; peer < options.rank; ++peer) {
    const int fd = connect_to(options.names[static_cast<std::size_t>(peer)], deadline);
    if (fd < 0) fail_link(Errc::kUnavailable, options.rank, peer, system_error("connect"));
    const bool sent =
        send_hello(fd, {.rank = options.rank, .heap_bytes = options.heap_bytes}, options.heap_fd);
    const Received answer = sent ? recv_hello(fd) : Received{};
    if (!answer.whole || answer.heap_fd < 0) {
      drop(fd, answer);
      fail_link(Errc::kUnavailable, options.rank, peer,
                "it closed the connection or did not answer in time");
    }
    links[static_cast<std::size_t>(peer)] = {fd,
                                             attach_once(answer.heap_fd, answer.hello.heap_bytes)};
  }
}

void accept_higher(std::vector<Link>& links, const LinkListener& listener,
                   const LinkOptions& options, const Deadline& deadline) {
  const int world = static_cast<int>(options.names.size());
  for (int left = world - 1 - options.rank; left > 0; --left) {
    auto [peer, link] = accept_one(listener.fd(), options, deadline);
    if (link.fd < 0) {
      int missing = options.rank + 1;
      while (missing < world && links[static_cast<std::size_t>(missing)].fd >= 0) ++missing;
      fail_link(Errc::kTimeout, options.rank, missing, "it did not connect in time");
    }
    links[static_cast<std::size_t>(peer)] = std::move(link);
  }
}

// Lower ranks wait for this one. As far as it can be told: otherwise they wait for their timeout.
void tell_lower(const LinkOptions& options) {
  const auto deadline = Deadline::in(std::chrono::seconds(1));
  for (int peer = 0; peer < options.rank; ++peer) {
    const int fd = connect_to(options.names[static_cast<std::size_t>(peer)], deadline);
    if (fd < 0) continue;
    send_hello(fd, {.rank = options.rank, .failed = 1}, options.heap_fd);
    close(fd);
  }
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
    close();
    throw Error(Errc::kUnavailable, why);
  }
}

LinkListener::~LinkListener() { close(); }

void LinkListener::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::vector<Link> link_all(LinkListener& listener, const LinkOptions& options) {
  const auto deadline = Deadline::in(options.timeout);
  std::vector<Link> links(options.names.size());
  try {
    link_to_lower(links, options, deadline);
    accept_higher(links, listener, options, deadline);
  } catch (const std::exception&) {  // also one of the store that lost_peer() asks
    // Higher ranks see the closed listener. Its descriptor is free now for the connections to lower
    // ranks, where descriptors have run out.
    listener.close();
    for (const Link& link : links)
      if (link.fd >= 0) close(link.fd);
    tell_lower(options);
    throw;
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
