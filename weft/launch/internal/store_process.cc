// The process is a copy of the launcher that runs serve(). It reads a socket whose other end is the
// launcher's:
//
//   launcher ── messages ─────> serve(): groups to guard; keys, if it holds the store
//            ── end of file ──> the launcher is gone: kill the groups, remove the folder, end
//
// The system closes the launcher's end however the launcher ends, by SIGKILL too. For that, no
// other process may keep this end open. It is close-on-exec, and process.cc closes such descriptors
// also in a child that runs a function. Until then, a child uses its copy to guard its own group.
// Each message is one small send(), so messages of several processes do not mix.
//
// On an orderly end, ~StoreProcess kills this process before it closes the socket (see the order of
// the members). So serve() cleans up only after a launcher that was killed.
//
// Threads: the store serves connections in a thread of its own. serve() is one of its clients.
#include "weft/launch/internal/store_process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <c10/util/Logging.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "weft/base/error.h"
#include "weft/launch/internal/stop_signals.h"
#include "weft/launch/internal/tcp_address.h"

namespace weft::launch::internal {
namespace {

// PyTorch's store accepts any connection. It limits the size of a request (8 MiB); this code
// handles the rest.
void prepare_for_strangers() {
  // The store logs malformed requests with a stack trace, with which anyone could flood the
  // terminal. So only fatal errors are logged.
  FLAGS_caffe2_log_level = 3;
  // The store keeps idle connections. Raising the limit of open files from the shell's 1024 to the
  // system's maximum makes it harder to keep ranks out.
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

c10::intrusive_ptr<c10d::Store> make_store(const StoreProcess::Options& options) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(options.port);
  store_options.isServer = true;
  store_options.waitWorkers = false;
  store_options.masterListenFd = options.listener;
  store_options.timeout = std::chrono::seconds(30);
  try {
    return c10::make_intrusive<c10d::TCPStore>(options.host, store_options);
  } catch (const std::exception& error) {
    throw Error(code_of(error), "the store of the job cannot run: " + describe(error));
  }
}

int serve(const StoreProcess::Options& options, int lifeline) {
  prepare_for_strangers();
  c10::intrusive_ptr<c10d::Store> store;
  if (options.listener >= 0) store = make_store(options);
  std::set<pid_t> groups;
  StoreProcess::Message message{};
  bool told = false;
  for (;;) {
    const ssize_t got = ::read(lifeline, &message, sizeof message);
    if (got < 0 && errno == EINTR) continue;
    // Also at an error: a launcher that cannot be heard counts as gone.
    if (got != sizeof message) break;
    if (message.group > 0) groups.insert(message.group);
    if (message.group < 0) groups.erase(-message.group);
    if (message.lost >= 0 && store && !told) {
      store->set(options.lost_key, std::to_string(message.lost));
      told = true;
    }
    if (message.gone >= 0 && store) {
      std::string text = std::to_string(message.gone) + " ";
      if (message.sign != 0) text.insert(text.begin(), message.sign);
      store->append(options.gone_key, {text.begin(), text.end()});
    }
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  std::error_code ignored;
  if (!options.folder.empty()) std::filesystem::remove_all(options.folder, ignored);
  return 0;
}

ProcessOptions store_process_options(const StoreProcess::Options& options, int lifeline) {
  ProcessOptions process;
  process.before = ignore_stop_signals;
  process.call = [options, lifeline] { return serve(options, lifeline); };
  process.inherit = {lifeline};
  if (options.listener >= 0) process.inherit.push_back(options.listener);
  // It has to outlive a launcher that was killed.
  process.dies_with_parent = false;
  return process;
}

// {the store process's end, the launcher's}. Sockets, since a write to a pipe without a reader
// would end the launcher by SIGPIPE.
std::array<Fd, 2> make_lifeline() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(Errc::kUnavailable,
                std::string("no socket for the store process: ") + std::strerror(errno));
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string refusal(const std::string& host, int port, int reason) {
  const std::string where = host + ":" + std::to_string(port);
  if (reason == EADDRINUSE)
    return where + " is in use; set another --master-port, or none for a free port";
  if (reason == EADDRNOTAVAIL)
    return where +
           " is not an address of this machine; node 0 must run on the host of --master-addr";
  return where + ": " + std::strerror(reason);
}

}  // namespace

Fd listen_for_store(const std::string& host, int port, int* bound) {
  // Listens before any rank exists: a rank that is faster than the store waits in the queue. A
  // refused connection would cost it a second.
  Fd listener = listen_at(resolve("--master-addr", host, port));
  if (!listener) throw Error(Errc::kBadConfig, refusal(host, port, errno));
  require_route(host, address_of(listener));
  *bound = ntohs(address_of(listener).port());
  return listener;
}

StoreProcess::StoreProcess(const Options& options) : StoreProcess(options, make_lifeline()) {}

StoreProcess::StoreProcess(const Options& options, std::array<Fd, 2> ends)
    : lifeline_(std::move(ends[1])), process_(store_process_options(options, ends[0].get())) {}

// Nothing if the process is gone: the supervisor sees its end.
void StoreProcess::tell(Message message) {
  // A copy of the launcher that becomes a rank says that it is to be guarded. It may wait, and the
  // messages that the launcher has not sent are not its own.
  if (::getpid() != owner_) {
    [[maybe_unused]] const auto sent =
        ::send(lifeline_.get(), &message, sizeof message, MSG_NOSIGNAL);
    return;
  }
  unsent_.push_back(message);
  send_unsent();
}

void StoreProcess::send_unsent() {
  while (!unsent_.empty()) {
    const ssize_t sent =
        ::send(lifeline_.get(), &unsent_.front(), sizeof(Message), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) return unsent_.clear();  // it is gone
    unsent_.pop_front();
  }
}

}  // namespace weft::launch::internal
