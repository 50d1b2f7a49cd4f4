#include "tests/chaos/internal/job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "weft/base/error.h"

namespace weft::chaos::internal {
namespace {

namespace fs = std::filesystem;

constexpr auto kLeave = std::chrono::seconds(2);
constexpr auto kLookAgain = std::chrono::milliseconds(20);

// Marks the processes of a job: they inherit it.
std::string make_tag() {
  return "WEFT_CHAOS_JOB=" + std::to_string(::getpid()) + "." +
         std::to_string(Clock::now().time_since_epoch().count());
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A progress bar ends its lines with a carriage return.
bool ends_line(char c) { return c == '\n' || c == '\r'; }

}  // namespace

Job::Job(const JobOptions& options)
    : folder_(options.folder), tag_(make_tag()), times_(options.folder + "/times") {
  fs::create_directories(folder_ + "/tmp");
  log_ = launch::Fd(
      ::open((folder_ + "/output.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log_) fail_io("cannot write", folder_ + "/output.log");
  times_.read();  // those of a job that this one resumes
  for (const LauncherOptions& one : options.launchers) start(one, options);
}

void Job::start(const LauncherOptions& options, const JobOptions& job) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error(Errc::kUnavailable, std::string("cannot create a pipe: ") + std::strerror(errno));
  launch::Fd in(ends[0]), nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const launch::Fd out(ends[1]);
  ::fcntl(in.get(), F_SETFL, O_NONBLOCK);
  launch::ProcessOptions process;
  process.argv = options.command;
  process.environment = job.environment;
  process.environment.insert(process.environment.end(), options.environment.begin(),
                             options.environment.end());
  process.environment.push_back("WEFT_STEP_TIMES=" + folder_ + "/times");
  process.environment.push_back("TMPDIR=" + folder_ + "/tmp");
  process.environment.push_back(tag_);
  process.stdin_fd = nothing.get();
  process.stdout_fd = process.stderr_fd = out.get();
  process.before = options.before;
  launchers_.push_back({launch::Process(process), std::move(in), ""});
}

void Job::pump(Clock::time_point until) {
  std::vector<pollfd> watched;
  for (const Launcher& launcher : launchers_) {
    if (launcher.pipe) watched.push_back({launcher.pipe.get(), POLLIN, 0});
    watched.push_back({launcher.process.pidfd(), POLLIN, 0});
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  ::poll(watched.data(), watched.size(), std::max(0, static_cast<int>(left.count())));
  for (Launcher& launcher : launchers_) read(launcher);
  for (const observe::StepTime& one : times_.read()) {
    steps_.push_back(one);
    Known& known = ranks_[one.rank];
    known.last = one;
    if (known.process.pid == one.pid) continue;
    if (const auto found = identify(one.pid); found && is_ours(one.pid)) known.process = *found;
  }
}

void Job::read(Launcher& launcher) {
  char bytes[16384];
  ssize_t got = -1;
  while (launcher.pipe && (got = ::read(launcher.pipe.get(), bytes, sizeof bytes)) > 0) {
    [[maybe_unused]] const auto logged = ::write(log_.get(), bytes, static_cast<std::size_t>(got));
    for (const char c : std::string_view(bytes, static_cast<std::size_t>(got))) {
      if (!ends_line(c)) {
        launcher.line += c;
      } else if (!launcher.line.empty()) {
        output_.push_back({Clock::now(), std::exchange(launcher.line, {})});
      }
    }
  }
  if (got == 0) launcher.pipe.reset();
}

std::optional<int> Job::exit_code() {
  int code = 0;
  for (Launcher& launcher : launchers_) {
    const auto end = launcher.process.poll();
    if (!end) return std::nullopt;
    if (code == 0) code = end->code();
  }
  return code;
}

bool Job::is_ours(pid_t pid) const {
  const std::string environment = content_of("/proc/" + std::to_string(pid) + "/environ");
  return environment.find(tag_) != std::string::npos;
}

std::optional<Victim> Job::rank(int rank) const {
  const auto found = ranks_.find(rank);
  if (found != ranks_.end()) {
    if (auto victim = Victim::open(found->second.process)) return victim;
  }
  for (const Launcher& launcher : launchers_) {  // a new process that has done no step yet
    const auto process = find_rank(launcher.process.pid(), rank);
    if (process && is_ours(process->pid)) return Victim::open(*process);
  }
  return std::nullopt;
}

void Job::signal(int number) {
  for (Launcher& launcher : launchers_) {
    // To the launcher alone: it passes the signal on.
    if (!launcher.process.poll()) ::kill(launcher.process.pid(), number);
  }
}

std::vector<std::string> Job::positions() const {
  std::vector<std::string> all;
  for (const auto& [rank, known] : ranks_) {
    all.push_back("rank " + std::to_string(rank) + ": last step " +
                  std::to_string(known.last.step) + " in group " +
                  std::to_string(known.last.group) + ", by process " +
                  std::to_string(known.process.pid) + "\n");
  }
  for (const pid_t pid : all_processes()) {
    if (is_ours(pid)) all.push_back(describe_process(pid));
  }
  return all;
}

std::vector<std::string> Job::processes() const {
  std::vector<std::string> found;
  for (const pid_t pid : all_processes()) {
    if (!is_ours(pid) || !identify(pid)) continue;
    std::string command = content_of("/proc/" + std::to_string(pid) + "/cmdline");
    for (char& c : command) c = c == '\0' ? ' ' : c;
    found.push_back("process " + std::to_string(pid) + ": " + command);
  }
  return found;
}

std::vector<std::string> Job::leftovers(bool own_dev_shm) const {
  const auto deadline = Clock::now() + kLeave;
  std::vector<std::string> left = processes();
  while (!left.empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kLookAgain);
    left = processes();
  }
  std::vector<std::string> folders{folder_ + "/tmp"};
  if (own_dev_shm) folders.emplace_back("/dev/shm");
  for (const std::string& folder : folders) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none))
      left.push_back("file " + entry.path().string());
  }
  return left;
}

}  // namespace weft::chaos::internal
