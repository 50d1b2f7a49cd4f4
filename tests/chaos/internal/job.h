// A training job under observation: its launchers, what they print, and the steps of its ranks.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/internal/victim.h"
#include "weft/launch/process.h"
#include "weft/observe/run/step_times.h"

namespace weft::chaos::internal {

using Clock = std::chrono::steady_clock;

// The launcher of one host.
struct LauncherOptions {
  std::vector<std::string> command;
  std::vector<std::string> environment = {};
  std::function<void()> before = nullptr;  // runs in the child
};

struct JobOptions {
  std::vector<LauncherOptions> launchers;
  std::vector<std::string> environment;
  std::string folder;  // for times, output.log and tmp/
};

class Job {
 public:
  // Starts the launchers. Throws as launch::Process does.
  explicit Job(const JobOptions& options);

  struct Output {
    Clock::time_point at;
    std::string text;
  };
  // Waits for output or an end, until `until` at most, and reads what there is.
  void pump(Clock::time_point until);
  // What pump() has read since the last call.
  std::vector<Output> take_output() { return std::exchange(output_, {}); }
  std::vector<observe::StepTime> take_steps() { return std::exchange(steps_, {}); }

  // Exit code of the job, when all launchers have ended: the first that is not 0.
  std::optional<int> exit_code();
  // The process of a rank. nullopt: it has none now.
  std::optional<Victim> rank(int rank) const;
  void signal(int number);  // to the launchers
  // Where each rank is, for a job that hangs.
  std::vector<std::string> positions() const;
  // Processes and files that are left after the end, also in /dev/shm if that is the job's own.
  // Waits for the processes to end, for a while.
  std::vector<std::string> leftovers(bool own_dev_shm) const;

 private:
  struct Launcher {
    launch::Process process;
    launch::Fd pipe;
    std::string line;  // not complete yet
  };
  void start(const LauncherOptions& options, const JobOptions& job);
  void read(Launcher& launcher);
  bool is_ours(pid_t pid) const;
  std::vector<std::string> processes() const;

  const std::string folder_, tag_;
  std::vector<Launcher> launchers_;
  launch::Fd log_;
  observe::StepTimesReader times_;
  std::vector<Output> output_;
  std::vector<observe::StepTime> steps_;
  struct Known {
    ProcessId process;
    observe::StepTime last;
  };
  std::map<int, Known> ranks_;
};

}  // namespace weft::chaos::internal
