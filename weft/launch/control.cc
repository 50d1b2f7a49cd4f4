#include "weft/launch/control.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft::launch {
namespace {

constexpr std::size_t kLongest = 4096, kMaxClients = 16;

struct Address {
  sockaddr_un value{};
  socklen_t size = 0;
};

Address address_of(const LauncherId& launcher) {
  const std::string name = "weft-launcher-" + std::to_string(launcher.pid) + "-" +
                           std::to_string(launcher.pid_namespace);
  Address address;
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());  // after a 0: abstract
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Fd new_socket() {
  Fd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made)
    throw Error(Errc::kUnavailable, std::string("no socket for requests: ") + std::strerror(errno));
  return made;
}

// Another user could listen, or ask, under any name.
bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::geteuid();
}

// One line; nullopt: none yet. *ended is set when the other side has closed the connection.
std::optional<std::string> receive(int socket, bool* ended) {
  char text[kLongest];
  const ssize_t got = ::recv(socket, text, sizeof text, MSG_DONTWAIT);
  *ended = got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  return got > 0 ? std::optional(std::string(text, static_cast<std::size_t>(got))) : std::nullopt;
}

bool send_line(int socket, const std::string& line) {
  return ::send(socket, line.data(), std::min(line.size(), kLongest), MSG_NOSIGNAL) > 0;
}

}  // namespace

ino_t own_pid_namespace() {
  struct stat numbers {};
  return ::stat("/proc/self/ns/pid", &numbers) == 0 ? numbers.st_ino : 0;
}

ControlSocket::ControlSocket() : listener_(new_socket()) {
  const Address address = address_of(::getpid());
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address.value), address.size) !=
          0 ||
      ::listen(listener_.get(), static_cast<int>(kMaxClients)) != 0)
    throw Error(Errc::kUnavailable,
                std::string("cannot listen for requests: ") + std::strerror(errno));
}

void ControlSocket::watch(std::vector<pollfd>& watched) const {
  watched.push_back({listener_.get(), POLLIN, 0});
  for (const Client& client : clients_) watched.push_back({client.socket.get(), POLLIN, 0});
}

void ControlSocket::accept_clients() {
  for (;;) {
    Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) return;
    if (is_same_user(client.get()) && clients_.size() < kMaxClients)
      clients_.push_back({std::move(client), ""});
  }
}

void ControlSocket::serve(
    const std::function<std::optional<std::string>(const std::string&)>& answer) {
  accept_clients();
  std::erase_if(clients_, [&](Client& client) {
    bool ended = false;
    const auto line = receive(client.socket.get(), &ended);
    if (line && client.request.empty()) client.request = *line;
    if (ended) return true;
    if (client.request.empty()) return false;
    const auto reply = answer(client.request);
    if (reply) send_line(client.socket.get(), *reply);
    return reply.has_value();
  });
}

std::string ask_launcher(const LauncherId& launcher, const std::string& request,
                         Deadline deadline) {
  const Fd socket = new_socket();
  const Address address = address_of(launcher);
  const std::string who = "the launcher (process " + std::to_string(launcher.pid) + ")";
  const auto* const where = reinterpret_cast<const sockaddr*>(&address.value);
  const int reason = ::connect(socket.get(), where, address.size) == 0 ? 0 : errno;
  if (reason == EAGAIN)
    throw Error(Errc::kUnavailable, who + " has too many requests that it has not read yet");
  // Another try would be the same.
  WEFT_REQUIRE(reason == 0 && is_same_user(socket.get()),
               who + " does not run, or belongs to another user");
  if (!send_line(socket.get(), request))
    throw Error(Errc::kUnavailable, who + " ended before it answered");
  for (;;) {
    bool ended = false;
    if (auto line = receive(socket.get(), &ended)) return *line;
    if (ended) throw Error(Errc::kUnavailable, who + " ended before it answered");
    if (deadline.passed())
      throw Error(Errc::kTimeout, who + " has not answered \"" + request + "\"");
    pollfd readable{socket.get(), POLLIN, 0};
    ::poll(&readable, 1, deadline.left_ms());
  }
}

namespace {

// True if the launcher answers that it runs this run, whose path is canonical.
bool runs(const LauncherId& launcher, const std::filesystem::path& run) {
  try {
    const auto answer = ask_launcher(launcher, "run", Deadline::in(std::chrono::seconds(1)));
    return std::filesystem::weakly_canonical(answer) == run;
  } catch (const Error&) {  // of another user, or it has just ended
    return false;
  }
}

// A launcher of this host that runs the run. Several nodes have one each.
std::optional<LauncherId> launcher_that_runs(const std::filesystem::path& run) {
  constexpr const char* kName = "@weft-launcher-";
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const auto at = line.find(kName);
    if (at == std::string::npos) continue;
    pid_t pid = 0;
    ino_t numbers = 0;
    const char* const end = line.data() + line.size();
    const auto dash = std::from_chars(line.data() + at + std::strlen(kName), end, pid).ptr;
    if (pid <= 0 || dash == end || *dash != '-') continue;
    std::from_chars(dash + 1, end, numbers);
    if (const LauncherId launcher(pid, numbers); runs(launcher, run)) return launcher;
  }
  return std::nullopt;
}

}  // namespace

LauncherId launcher_of_run(const std::string& run_folder) {
  const auto file = std::filesystem::path(run_folder) / "launcher";
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kInvalidArgument, run_folder + ": " + why);
  };
  if (!std::filesystem::exists(run_folder)) refuse("there is no such run");
  if (!std::filesystem::exists(file)) refuse("its ranks were not started by weft's launcher");
  const std::string text = read_file(file.string(), 64);
  pid_t pid = 0;
  std::from_chars(text.data(), text.data() + text.size(), pid);
  // The number may be that of another run's launcher by now.
  const auto run = std::filesystem::weakly_canonical(run_folder);
  if (pid > 0 && runs(pid, run)) return pid;
  const auto other = launcher_that_runs(run);
  if (!other) refuse("the run has ended, or its launcher does not answer");
  return *other;
}

}  // namespace weft::launch
