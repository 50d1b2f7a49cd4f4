// How the supervisor starts a rank: its folder, environment and output.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "weft/base/error.h"
#include "weft/base/json/error_file.h"
#include "weft/base/process/start.h"
#include "weft/launch/internal/pipe.h"
#include "weft/launch/internal/supervisor.h"

namespace weft::launch::internal {
namespace {

// The id of a job may have slashes, and any length.
std::string name_of_folder(const std::string& run_id) {
  constexpr std::size_t kLongest = 100;
  std::string name = run_id.substr(0, kLongest);
  std::replace(name.begin(), name.end(), '/', '-');
  return name;
}

}  // namespace

Fd open_log(const std::filesystem::path& file, bool append) {
  Fd log(
      ::open(file.c_str(), O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC) | O_CLOEXEC, 0644));
  if (!log)
    throw Error(Errc::kUnavailable, "cannot write " + file.string() + ": " + std::strerror(errno),
                {"launch", -1, -1});
  return log;
}

// A descriptor with its own position, so that each rank can read it from the start.
Fd reopen(const Fd& fd) {
  return fd ? Fd(::open(("/proc/self/fd/" + std::to_string(fd.get())).c_str(),
                        O_RDONLY | O_CLOEXEC))
            : Fd();
}

// <log dir>/<run id>_XXXXXX, as in torchrun. Without logs: a folder for the error files that is
// removed at the end.
void Supervisor::make_folder() {
  const auto any = [](const std::vector<int>& streams) {
    return std::any_of(streams.begin(), streams.end(), [](int s) { return s != 0; });
  };
  keep_folder_ = !options_.log_dir.empty() || any(job_.redirects) || any(job_.tee);
  const std::filesystem::path parent = options_.log_dir.empty()
                                           ? std::filesystem::path(temporary_folder())
                                           : std::filesystem::path(options_.log_dir);
  std::error_code failed;
  std::filesystem::create_directories(parent, failed);
  std::string pattern = (parent / ((options_.log_dir.empty() ? "weft_" : "") +
                                   name_of_folder(job_.run_id) + "_XXXXXX"))
                            .string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw Error(Errc::kBadConfig,
                "cannot make a folder in " + parent.string() + ": " + std::strerror(errno),
                {"launch", -1, -1});
  }
  folder_ = pattern;
  if (keep_folder_) note("logs in " + folder_.string());
}

std::filesystem::path Supervisor::folder_of(int local) const {
  return folder_ / ("attempt_" + std::to_string(situation_.restarts)) / std::to_string(local);
}

std::filesystem::path Supervisor::error_file_of(int local) const {
  return folder_of(local) / "error.json";
}

// The rank's stderr goes to a file, which then also contains its error.
bool Supervisor::logs_errors(int local) const {
  const auto at = static_cast<std::size_t>(local);
  return ((job_.redirects[at] | job_.tee[at]) & STDERR_FILENO) != 0;
}

bool Supervisor::goes_past(int local) const {
  const auto at = static_cast<std::size_t>(local);
  const bool logged = job_.redirects[at] != 0 || job_.tee[at] != 0;
  const bool alone = job_.local_world == 1 && !options_.prefix.value_or(false);
  return !logged && job_.shown[at] && (alone || (local == 0 && options_.rank0_keeps_terminal));
}

// The program, or a fork of this process, without its environment. `rank` -1: a spare.
ProcessOptions Supervisor::program_of(int rank) {
  ProcessOptions process;
  process.before = [this] { store_process_->guard(::getpid()); };
  if (!run_) {
    process.argv = command_line(options_.program);
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

Supervisor::Rank Supervisor::start_rank(int local, bool replaces) {
  std::filesystem::create_directories(folder_of(local));
  if (replaces) {
    if (auto warm = become_rank(local)) return std::move(*warm);
  }
  const Fd secret = reopen(secret_), nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessOptions process = program_of(job_.rank(local));
  const int live = page_ && job_.rank(local) == 0 ? page_->fd() : -1;
  auto [link, its_link] = agent::Link::make();
  process.environment = rank_environment(
      options_, job_, local,
      {situation_.restarts, error_file_of(local).string(), secret.get(), live, its_link.fd(),
       replaces, replaces ? run_folder_ : resume_run_, !logs_errors(local), positions_.fd(),
       following_ ? following_->store->socket() : "", replaces && has_state_});
  process.inherit.push_back(its_link.fd());
  process.inherit.push_back(positions_.fd());
  positions_.clear(local);
  positions_.header().generation.fetch_add(1);
  if (secret) process.inherit.push_back(secret.get());
  if (live >= 0) process.inherit.push_back(live);
  // At most one rank reads stdin, and never a terminal: reading it would stop a background process
  // group.
  if (job_.rank(local) != 0 || ::isatty(STDIN_FILENO)) process.stdin_fd = nothing.get();
  if (goes_past(local)) return {Process(process), std::move(link), LineRelay(), LineRelay()};
  auto out = make_pipe("a rank's output"), err = make_pipe("a rank's output");
  process.stdout_fd = out[1].get();
  process.stderr_fd = err[1].get();
  Process started(process);
  return {std::move(started), std::move(link),
          relay(local, STDOUT_FILENO, std::move(out[0]), replaces),
          relay(local, STDERR_FILENO, std::move(err[0]), replaces)};
}

LineRelay Supervisor::relay(int local, int stream, Fd pipe, bool append) {
  const auto at = static_cast<std::size_t>(local);
  const bool redirected = (job_.redirects[at] & stream) != 0, teed = (job_.tee[at] & stream) != 0;
  LineRelay::Options options;
  if (!redirected && job_.shown[at]) options.console = stream;
  if (options_.prefix.value_or(job_.local_world > 1))
    options.prefix = "[rank " + std::to_string(job_.rank(local)) + "] ";
  if (goes_past(local)) options.prefix.clear();  // a spare whose pipe already existed
  if (redirected || teed)
    options.log = open_log(
        folder_of(local) / (stream == STDOUT_FILENO ? "stdout.log" : "stderr.log"), append);
  options.keep_tail = stream == STDERR_FILENO;
  return LineRelay(std::move(pipe), std::move(options));
}

}  // namespace weft::launch::internal
