#include "bench/suite/internal/participant.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "weft/base/error.h"

namespace weft::cli::bench_internal {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxLine = 16 << 20;

std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_io("cannot make", "a pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

sigset_t handled() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Signals::Signals() {
  const sigset_t set = handled();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd_) fail_io("cannot make", "a signalfd");
  std::signal(SIGPIPE, SIG_IGN);  // ask() throws if a participant has ended
}

Signals::~Signals() {
  const sigset_t set = handled();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void Signals::pause(std::chrono::milliseconds time) const {
  pollfd wait{fd_.get(), POLLIN, 0};
  ::poll(&wait, 1, static_cast<int>(time.count()));
  signalfd_siginfo signal;
  if (wait.revents != 0 && ::read(fd_.get(), &signal, sizeof signal) == sizeof signal)
    throw Interrupted{static_cast<int>(signal.ssi_signo)};
}

Participant::Participant(std::string name, const std::vector<std::string>& argv,
                         const std::vector<std::string>& environment, const Signals& signals)
    : name_(std::move(name)), signals_(signals) {
  std::tie(answer_in_, answer_out_) = make_pipe();
  launch::ProcessOptions options;
  options.argv = argv;
  options.environment = environment;
  start(std::move(options), true);
  answer_out_.reset();
}

Participant::Participant(std::string name, int ranks, const std::function<int(int rank)>& serve,
                         const Signals& signals)
    : name_(std::move(name)), signals_(signals) {
  std::tie(answer_in_, answer_out_) = make_pipe();
  for (int rank = 0; rank < ranks; ++rank) {
    launch::ProcessOptions options;
    options.environment = {"OMP_NUM_THREADS=1"};
    options.call = [&serve, rank] { return serve(rank); };
    start(std::move(options), rank == 0);
  }
  answer_out_.reset();
}

void Participant::start(launch::ProcessOptions options, bool answers) {
  auto [command_in, command_out] = make_pipe();
  options.stdin_fd = command_in.get();
  options.stdout_fd = answers ? answer_out_.get() : 2;
  processes_.emplace_back(options);
  commands_.push_back(std::move(command_out));
}

Participant::~Participant() {
  commands_.clear();
  const auto deadline = Deadline::in(usable_ ? 2s : 0s);
  for (auto& process : processes_) {
    if (!process.wait(deadline)) process.terminate(1s);
  }
}

Message Participant::ask(const std::string& command, std::chrono::milliseconds limit) {
  try {
    for (const auto& fd : commands_) write_all(fd.get(), command + "\n", name_);
  } catch (const Error&) {
    throw Error(Errc::kPeerLost, name_ + " has ended");
  }
  return listen(limit);
}

Message Participant::listen(std::chrono::milliseconds limit) {
  usable_ = false;
  const auto answer = parse_message(read_line(Deadline::in(limit)));
  usable_ = true;
  if (const auto error = answer.text("error"); !error.empty()) {
    throw Error(Errc::kInvalidArgument, name_ + ": " + error.substr(0, error.find('\n')));
  }
  return answer;
}

std::string Participant::read_line(Deadline deadline) {
  while (true) {
    if (const auto end = pending_.find('\n'); end != std::string::npos) {
      const std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    pollfd waits[] = {{answer_in_.get(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    const int ready = ::poll(waits, 2, deadline.left_ms());
    if (ready < 0 && errno != EINTR) fail_io("cannot wait for", name_);
    if (ready == 0) throw Error(Errc::kTimeout, name_ + " did not answer in time");
    if (waits[1].revents != 0) signals_.pause(0ms);
    if (waits[0].revents == 0) continue;
    char bytes[1 << 14];
    const ssize_t got = ::read(answer_in_.get(), bytes, sizeof bytes);
    if (got == 0) throw Error(Errc::kPeerLost, name_ + " ended instead of answering");
    if (got > 0) pending_.append(bytes, static_cast<std::size_t>(got));
    if (pending_.size() > kMaxLine)
      throw Error(Errc::kCorrupt, name_ + " answered with an endless line");
  }
}

}  // namespace weft::cli::bench_internal
