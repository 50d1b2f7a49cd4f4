#include "weft/launch/internal/starter.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/json/error_file.h"
#include "weft/base/process/start.h"
#include "weft/base/random.h"
#include "weft/base/text/variables.h"
#include "weft/launch/internal/meeting_point.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/sibling_program.h"
#include "weft/rank_link/messages.h"
#include "weft/rank_link/spare.h"

namespace weft::launch::internal {
namespace {

constexpr std::size_t kSecretBytes = 32;
constexpr int kSecretTimeoutMs = 10'000;

std::string read_secret(const std::string& file) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kBadConfig, "--secret-file " + file + ": " + why, {"launch", -1, -1});
  };
  // To open a pipe that nobody writes to would block.
  const Fd in(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!in) refuse(std::strerror(errno));
  std::string bytes(kSecretBytes, '\0');
  ssize_t got = 0;
  for (std::size_t have = 0; have < kSecretBytes; have += static_cast<std::size_t>(got)) {
    got = ::read(in.get(), bytes.data() + have, kSecretBytes - have);
    if (got < 0 && errno == EAGAIN) {  // the writer of a pipe is slow
      pollfd readable{in.get(), POLLIN, 0};
      if (::poll(&readable, 1, kSecretTimeoutMs) == 0) refuse("no bytes come from it");
      got = ::read(in.get(), bytes.data() + have, kSecretBytes - have);
    }
    if (got < 0) refuse(std::strerror(errno));
    if (got == 0) refuse("expected at least " + std::to_string(kSecretBytes) + " bytes");
  }
  return bytes;
}

// A sealed memory file: it has no name, ranks cannot change it, and it does not appear in arguments
// or environment.
Fd hold_secret(const std::string& bytes) {
  Fd memory(::memfd_create("weft-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory ||
      ::write(memory.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    throw Error(Errc::kUnavailable,
                std::string("cannot create a memory file for the secret: ") + std::strerror(errno),
                {"launch", -1, -1});
  ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  return memory;
}

// The secret of the options, or a new one; none for several nodes without one.
Fd secret_of(const Node& node) {
  if (!node.options.secret_file.empty()) return hold_secret(read_secret(node.options.secret_file));
  if (node.job.nodes == 1) return hold_secret(random_bytes(kSecretBytes));
  node.note("no --secret-file: ranks of different nodes cannot authenticate each other");
  return Fd();
}

// The id of a job may have slashes, and any length.
std::string name_of_folder(const std::string& run_id) {
  constexpr std::size_t kLongest = 100;
  std::string name = run_id.substr(0, kLongest);
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

Fd open_log(const std::filesystem::path& file, bool append) {
  Fd log(
      ::open(file.c_str(), O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC) | O_CLOEXEC, 0644));
  if (!log)
    throw Error(Errc::kUnavailable, "cannot write " + file.string() + ": " + std::strerror(errno),
                {"launch", -1, -1});
  return log;
}

// systemd-tmpfiles removes old files from folders such as /tmp, but nothing below a locked folder.
Fd lock_against_cleaning(const std::string& folder) {
  Fd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock) ::flock(lock.get(), LOCK_SH | LOCK_NB);
  return lock;
}

// A descriptor with its own position, so that each rank can read it from the start.
Fd reopen(const Fd& fd) {
  return fd ? Fd(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(),
                        O_RDONLY | O_CLOEXEC))
            : Fd();
}

Fd nothing() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// A process whose output comes through pipes.
struct Piped {
  Process process;
  Fd out, err;
};

// `what` names the output in errors.
Piped start_piped(ProcessOptions& options, const char* what) {
  auto out = make_pipe(what), err = make_pipe(what);
  options.stdout_fd = out[1].get();
  options.stderr_fd = err[1].get();
  Process started(options);
  return {std::move(started), std::move(out[0]), std::move(err[0])};
}

LineRelay relay_of_spare(Fd pipe, Console* console) {
  LineRelay::Options options;
  options.console = console;
  options.prefix = "[spare] ";
  return LineRelay(std::move(pipe), std::move(options));
}

// Where workers of other hosts reach the servers of this node.
std::string server_interface(const Job& job) {
  if (const char* const asked = variable_or_null("WEFT_INTERFACE")) return asked;
  return job.membership ? own_host(job.membership->endpoint_host, job.membership->endpoint_port)
                        : "127.0.0.1";
}

// Takes the number of the rank out of an environment: the last entry of a name counts.
void forget_rank(std::vector<std::string>& environment) {
  for (const char* unknown : {"RANK=", "LOCAL_RANK=", "ROLE_RANK="})
    environment.emplace_back(unknown);
}

}  // namespace

Starter::Starter(Node& node, std::function<int(int)> run)
    : node_(node),
      run_(std::move(run)),
      server_program_(node.job.servers == 0 ? ""
                                            : sibling_program(node.options.servers.program,
                                                              "weft_ps", "weft_ps_server")),
      secret_(secret_of(node)),
      spares_(
          node.job.spares, [this] { return start_spare(); },
          [this](const std::string& text) { node_.note(text); },
          [this](pid_t group) { node_.store->forget(group); }) {
  if (!node.options.http.empty() && node.job.node_rank == 0)
    page_ = std::make_unique<LivePage>(node.options.http);
  make_folder();
}

Starter::~Starter() {
  std::error_code ignored;
  if (!keeps_folder_) std::filesystem::remove_all(folder_, ignored);
}

// <log dir>/<run id>_XXXXXX, as in torchrun. Without logs: a folder for the error files that is
// removed at the end. An absolute path, since programs may change their current folder.
void Starter::make_folder() {
  const auto any = [](const std::vector<int>& streams) {
    return std::any_of(streams.begin(), streams.end(), [](int s) { return s != 0; });
  };
  keeps_folder_ = !node_.options.log_dir.empty() || any(node_.job.redirects) || any(node_.job.tee);
  const bool is_temporary = node_.options.log_dir.empty();
  const std::filesystem::path parent =
      std::filesystem::absolute(is_temporary ? temporary_folder() : node_.options.log_dir);
  std::error_code failed;
  std::filesystem::create_directories(parent, failed);
  std::string pattern =
      (parent / ((is_temporary ? "weft_" : "") + name_of_folder(node_.job.run_id) + "_XXXXXX"))
          .string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw Error(Errc::kBadConfig,
                "cannot make a folder in " + parent.string() + ": " + std::strerror(errno),
                {"launch", -1, -1});
  }
  folder_ = pattern;
  if (is_temporary) locks_.push_back(lock_against_cleaning(pattern));
  if (keeps_folder_) node_.note("logs in " + folder_.string());
}

std::string Starter::make_servers_folder() {
  if (!keeps_folder_) return (folder_ / "servers").string();
  std::string folder =
      (std::filesystem::absolute(temporary_folder()) / "weft_servers_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr)
    throw Error(Errc::kUnavailable,
                "--servers: cannot make a folder " + folder + ": " + std::strerror(errno));
  locks_.push_back(lock_against_cleaning(folder));
  return folder;
}

std::filesystem::path Starter::folder_of(int local) const {
  return folder_ / ("attempt_" + std::to_string(node_.situation.restarts)) / std::to_string(local);
}

std::filesystem::path Starter::error_file_of(int local) const {
  return folder_of(local) / "error.json";
}

bool Starter::logs_errors(int local) const {
  const auto at = static_cast<std::size_t>(local);
  return ((node_.job.redirects[at] | node_.job.tee[at]) & STDERR_FILENO) != 0;
}

std::string Starter::log_of(int local) const {
  return logs_errors(local) ? (folder_of(local) / "stderr.log").string() : "";
}

bool Starter::goes_past(int local) const {
  const auto at = static_cast<std::size_t>(local);
  const bool logged = node_.job.redirects[at] != 0 || node_.job.tee[at] != 0;
  const bool alone = node_.job.local_world == 1 && !node_.options.prefix.value_or(false);
  return !logged && node_.job.shown[at] &&
         (alone || (local == 0 && node_.options.rank0_keeps_terminal));
}

// The program, or a fork of this process, without its environment. `rank` -1: a spare.
ProcessOptions Starter::program_of(int rank) {
  ProcessOptions process;
  process.before = [this] { node_.store->guard(::getpid()); };
  if (!run_) {
    process.argv = command_line(node_.options.program);
    return process;
  }
  process.call = [this, rank] {
    const std::string name = rank < 0 ? "weft spare" : "weft rank " + std::to_string(rank);
    ::prctl(PR_SET_NAME, name.c_str());  // for ps and weft chaos
    try {
      return run_(rank);
    } catch (const std::exception& error) {
      return fail_with(error);
    }
  };
  return process;
}

RankProcess Starter::start_rank(int local, bool replaces) {
  std::filesystem::create_directories(folder_of(local));
  if (replaces) {
    if (auto warm = become_rank(local)) return std::move(*warm);
  }
  const Fd secret = reopen(secret_), empty = nothing();
  ProcessOptions process = program_of(node_.job.rank(local));
  const int live = page_ && node_.job.rank(local) == 0 ? page_->fd() : -1;
  auto [link, its_link] = rank_link::Link::make();
  process.environment = rank_environment(
      node_.options, node_.job, local,
      {node_.situation.restarts, error_file_of(local).string(), secret.get(), live, its_link.fd(),
       replaces, replaces ? node_.run_folder : node_.resume_run, !logs_errors(local),
       node_.positions.fd(), store_, replaces && node_.has_state});
  process.inherit.push_back(its_link.fd());
  process.inherit.push_back(node_.positions.fd());
  node_.positions.clear(local, node_.job.rank(local));
  node_.positions.header().generation.fetch_add(1);
  if (secret) process.inherit.push_back(secret.get());
  if (live >= 0) process.inherit.push_back(live);
  // At most one rank reads stdin, and never a terminal: reading it would stop a background process
  // group.
  if (node_.job.rank(local) != 0 || ::isatty(STDIN_FILENO)) process.stdin_fd = empty.get();
  if (goes_past(local)) return {Process(process), std::move(link), LineRelay(), LineRelay()};
  auto started = start_piped(process, "a rank's output");
  return {std::move(started.process), std::move(link),
          relay(local, STDOUT_FILENO, std::move(started.out), replaces),
          relay(local, STDERR_FILENO, std::move(started.err), replaces)};
}

std::optional<RankProcess> Starter::try_to_start(int local, bool replaces) {
  std::error_code ignored;
  std::filesystem::remove(error_file_of(local), ignored);
  try {
    RankProcess started = start_rank(local, replaces);
    node_.situation.failed_starts = 0;
    return started;
  } catch (const std::exception& error) {
    if (code_of(error) != Errc::kUnavailable) throw;
    node_.situation.last_end = std::chrono::steady_clock::now();
    if (++node_.situation.failed_starts == 1)
      node_.note("rank " + std::to_string(node_.job.rank(local)) + " cannot be started now: " +
                 describe(error) + "; it is tried again, and this is said once");
    return std::nullopt;
  }
}

LineRelay Starter::relay(int local, int stream, Fd pipe, bool append) {
  const auto at = static_cast<std::size_t>(local);
  const bool redirected = (node_.job.redirects[at] & stream) != 0,
             teed = (node_.job.tee[at] & stream) != 0;
  LineRelay::Options options;
  if (!redirected && node_.job.shown[at]) options.console = node_.console(stream);
  if (node_.options.prefix.value_or(node_.job.local_world > 1))
    options.prefix = "[rank " + std::to_string(node_.job.rank(local)) + "] ";
  if (goes_past(local)) options.prefix.clear();  // a spare whose pipe already existed
  if (redirected || teed)
    options.log = open_log(
        folder_of(local) / (stream == STDOUT_FILENO ? "stdout.log" : "stderr.log"), append);
  options.errors = node_.err.get();
  options.keep_tail = stream == STDERR_FILENO;
  return LineRelay(std::move(pipe), std::move(options));
}

// The environment of a rank, without its number.
Spare Starter::start_spare() {
  const Fd secret = reopen(secret_), empty = nothing();
  ProcessOptions process = program_of(-1);
  const int live = page_ ? page_->fd() : -1;
  auto [link, its_link] = rank_link::Link::make();
  process.environment = rank_environment(node_.options, node_.job, 0,
                                         {node_.situation.restarts, "", secret.get(), -1,
                                          its_link.fd(), true, node_.run_folder, true, -1});
  forget_rank(process.environment);
  process.environment.push_back(std::string(rank_link::kSpareVariable) + "=1");
  process.inherit = {its_link.fd(), node_.positions.fd()};
  if (secret) process.inherit.push_back(secret.get());
  if (live >= 0) process.inherit.push_back(live);
  process.stdin_fd = empty.get();
  auto started = start_piped(process, "a spare's output");
  return {.process = std::move(started.process),
          .link = std::move(link),
          .out = relay_of_spare(std::move(started.out), node_.err.get()),
          .err = relay_of_spare(std::move(started.err), node_.err.get()),
          .secret_fd = secret.get(),
          .live_fd = live,
          .link_fd = its_link.fd()};
}

// nullopt: no spare is ready.
std::optional<RankProcess> Starter::become_rank(int local) {
  for (auto spare = spares_.take(); spare; spare = spares_.take()) {
    node_.positions.clear(local, node_.job.rank(local));
    node_.positions.header().generation.fetch_add(1);
    const auto environment = rank_environment(
        node_.options, node_.job, local,
        {node_.situation.restarts, error_file_of(local).string(), spare->secret_fd,
         node_.job.rank(local) == 0 ? spare->live_fd : -1, spare->link_fd, true, node_.run_folder,
         !logs_errors(local), node_.positions.fd(), store_, node_.has_state});
    const rank_link::BecomeRank become{rank_link::to_text(environment)};
    if (!rank_link::tell(spare->link, become)) {  // it has just ended
      spares_.end(std::move(*spare));
      continue;
    }
    return RankProcess{std::move(spare->process), std::move(spare->link),
                       relay(local, STDOUT_FILENO, spare->out.release(), true),
                       relay(local, STDERR_FILENO, spare->err.release(), true)};
  }
  return std::nullopt;
}

ServerProcess Starter::start_server(int server) {
  const Fd secret = reopen(secret_), empty = nothing();
  auto [link, its_link] = rank_link::Link::make();
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  ProcessOptions process;
  process.before = [this] { node_.store->guard(::getpid()); };
  process.argv = {server_program_,
                  "--server",
                  text(server),
                  "--servers",
                  text(node_.job.servers),
                  "--backup",
                  node_.job.server_backup ? "1" : "0",
                  "--memory-mb",
                  text(node_.options.servers.memory_mb),
                  "--interface",
                  server_interface(node_.job),
                  "--stay",
                  "1"};
  process.environment = rank_environment(
      node_.options, node_.job, 0,
      {node_.situation.restarts, "", secret.get(), -1, its_link.fd(), false, "", true, -1, store_});
  forget_rank(process.environment);
  process.inherit = {its_link.fd()};
  if (secret) process.inherit.push_back(secret.get());
  process.stdin_fd = empty.get();
  auto started = start_piped(process, "a server's output");
  return {std::move(started.process), std::move(link),
          relay_of_server(server, STDOUT_FILENO, std::move(started.out)),
          relay_of_server(server, STDERR_FILENO, std::move(started.err))};
}

LineRelay Starter::relay_of_server(int server, int stream, Fd pipe) {
  LineRelay::Options options;
  options.console = node_.console(stream);
  options.errors = node_.err.get();
  options.prefix = "[server " + std::to_string(server) + "] ";
  if (keeps_folder_) {
    const auto folder = folder_ / ("attempt_" + std::to_string(node_.situation.restarts)) /
                        ("server_" + std::to_string(server));
    std::filesystem::create_directories(folder);
    options.log = open_log(folder / (stream == STDOUT_FILENO ? "stdout.log" : "stderr.log"), true);
  }
  return LineRelay(std::move(pipe), std::move(options));
}

}  // namespace weft::launch::internal
