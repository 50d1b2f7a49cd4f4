#include "weft/launch/internal/polled_command.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "weft/base/error.h"
#include "weft/launch/internal/pipe.h"

namespace weft::launch::internal {

std::string PolledCommand::Result::describe() const {
  return timed_out ? "it took longer than " + std::to_string(kLimit.count()) + " s and was killed"
                   : status.describe();
}

PolledCommand::PolledCommand(std::string command, std::chrono::milliseconds every)
    : command_(std::move(command)), every_(every) {}

void PolledCommand::watch(std::vector<pollfd>& watched) const {
  if (!process_) return;
  watched.push_back({process_->pidfd(), POLLIN, 0});
  if (output_) watched.push_back({output_.get(), POLLIN, 0});
}

std::optional<Time> PolledCommand::next() const {
  if (command_.empty()) return std::nullopt;
  return process_ ? limit_ : due_;
}

std::optional<PolledCommand::Result> PolledCommand::look(Time now) {
  if (command_.empty()) return std::nullopt;
  if (!process_) return now >= due_ ? start(now) : std::nullopt;
  read();
  auto status = process_->poll();
  const bool timed_out = !status && now >= limit_;
  if (!status && !timed_out) return std::nullopt;
  process_.reset();  // kills it, if it still runs
  read();
  output_.reset();
  return Result{status.value_or(ExitStatus{true, SIGKILL}), std::exchange(text_, ""), timed_out};
}

std::optional<PolledCommand::Result> PolledCommand::start(Time now) {
  due_ = now + every_;
  limit_ = now + kLimit;
  try {
    auto out = make_pipe("a command's output");
    ::fcntl(out[0].get(), F_SETFL, O_NONBLOCK);
    const Fd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ProcessOptions options;
    options.argv = {"/bin/sh", "-c", command_};
    options.stdin_fd = nothing.get();
    options.stdout_fd = out[1].get();
    process_.emplace(options);
    output_ = std::move(out[0]);
  } catch (const Error&) {  // no memory or descriptor for a process: like a command that fails
    return Result{.status = {false, 126}, .output = {}};
  }
  return std::nullopt;
}

// What exceeds the limit is read and dropped, so that the command does not block.
void PolledCommand::read() {
  char buffer[4096];
  while (output_) {
    const ssize_t got = ::read(output_.get(), buffer, sizeof buffer);
    if (got < 0) return;
    if (got == 0) return output_.reset();
    const auto room = kMaxOutput - std::min(kMaxOutput, text_.size());
    text_.append(buffer, std::min(room, static_cast<std::size_t>(got)));
  }
}

}  // namespace weft::launch::internal
