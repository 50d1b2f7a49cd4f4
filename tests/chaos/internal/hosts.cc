#include "tests/chaos/internal/hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "weft/base/error.h"

namespace weft::chaos::internal {
namespace {

constexpr auto kCommandLimit = std::chrono::seconds(10);
constexpr auto kNoAnswer = std::chrono::milliseconds(200);

[[noreturn]] void unavailable(const std::string& what) {
  throw Error(Errc::kUnavailable, "hosts of network namespaces: " + what);
}

// True if the host at this address answers at all: it refuses a connection.
bool is_answered(const std::string& address) {
  constexpr std::uint16_t kDiscard = 9;
  const launch::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(kDiscard);
  ::inet_pton(AF_INET, address.c_str(), &to.sin_addr);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return true;
  if (errno != EINPROGRESS) return errno == ECONNREFUSED;
  pollfd answered{socket.get(), POLLOUT, 0};
  if (::poll(&answered, 1, static_cast<int>(kNoAnswer.count())) != 1) return false;
  int error_number = 0;
  socklen_t size = sizeof error_number;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error_number, &size);
  return error_number == 0 || error_number == ECONNREFUSED;
}

std::string port_of(int host) { return "host" + std::to_string(host); }

}  // namespace

Hosts::Hosts(int count) : bridge_(make_namespace()) {
  command(bridge_, {"ip", "link", "add", "bridge0", "type", "bridge"});
  command(bridge_, {"ip", "link", "set", "bridge0", "up"});
  for (int host = 0; host < count; ++host) {
    hosts_.push_back(make_namespace());
    const std::string port = port_of(host), pid = std::to_string(hosts_.back().holder.pid());
    command(bridge_,
            {"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", pid});
    command(bridge_, {"ip", "link", "set", port, "master", "bridge0", "up"});
    command(hosts_.back(), {"ip", "address", "add", address(host) + "/24", "dev", "eth0"});
    command(hosts_.back(), {"ip", "link", "set", "lo", "up"});
    command(hosts_.back(), {"ip", "link", "set", "eth0", "up"});
  }
}

std::string Hosts::address(int host) const { return "10.77.0." + std::to_string(host + 1); }

void Hosts::enter(int host) const {
  if (::setns(hosts_[static_cast<std::size_t>(host)].fd.get(), CLONE_NEWNET) != 0) ::_exit(126);
}

void Hosts::cut(int host) { command(bridge_, {"ip", "link", "set", port_of(host), "nomaster"}); }

void Hosts::join(int host) {
  command(bridge_, {"ip", "link", "set", port_of(host), "master", "bridge0"});
}

bool Hosts::is_cut(int host) const {
  const std::string other = address(host == 0 ? 1 : 0);
  launch::ProcessOptions options;
  options.before = [&] { enter(host); };
  options.call = [&] { return is_answered(other) ? 0 : 1; };
  const auto end = launch::Process(options).wait(Deadline::in(kCommandLimit));
  return end && end->code() == 1;
}

Hosts::Namespace Hosts::make_namespace() {
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) unavailable(std::strerror(errno));
  const launch::Fd in(ready[0]);
  launch::Fd out(ready[1]);
  launch::ProcessOptions options;
  options.inherit = {out.get()};
  options.before = [&] {
    const int error_number = ::unshare(CLONE_NEWNET) == 0 ? 0 : errno;
    if (::write(out.get(), &error_number, sizeof error_number) < 0) ::_exit(1);
  };
  options.call = [] {
    for (;;) ::pause();
    return 0;
  };
  launch::Process holder(options);
  int error_number = -1;
  out.reset();
  if (::read(in.get(), &error_number, sizeof error_number) != sizeof error_number ||
      error_number != 0)
    unavailable(std::string("cannot make one: ") +
                std::strerror(error_number > 0 ? error_number : EPERM) + "; run as root");
  launch::Fd fd(
      ::open(("/proc/" + std::to_string(holder.pid()) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) unavailable(std::strerror(errno));
  return {std::move(holder), std::move(fd)};
}

int Hosts::status(const Namespace& where, const std::vector<std::string>& words) {
  const launch::Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  launch::ProcessOptions options;
  options.argv = words;
  options.stdout_fd = options.stderr_fd = nothing.get();
  options.before = [&] {
    if (::setns(where.fd.get(), CLONE_NEWNET) != 0) ::_exit(126);
  };
  launch::Process process(options);
  const auto end = process.wait(Deadline::in(kCommandLimit));
  return end ? end->code() : 124;
}

void Hosts::command(const Namespace& where, const std::vector<std::string>& words) {
  const int code = status(where, words);
  if (code == 0) return;
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  unavailable("'" + line + "' ended with exit code " + std::to_string(code));
}

}  // namespace weft::chaos::internal
