// A shell command that runs again and again beside the job, and whose exit code and output are read
// without waiting.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "weft/launch/process.h"
#include "weft/launch/supervision.h"

namespace weft::launch::internal {

class PolledCommand {
 public:
  // A command that takes longer is killed.
  static constexpr auto kLimit = std::chrono::seconds(30);
  static constexpr std::size_t kMaxOutput = 64 * 1024;

  struct Result {
    ExitStatus status;
    std::string output;  // Of stdout. Its stderr is the launcher's.
    bool timed_out = false;
    // How the run ended, such as "exit code 1".
    std::string describe() const;
  };

  // `command`: for /bin/sh -c. Empty: nothing ever runs. A run starts `every` after the last one's
  // start, and not before that one's end.
  PolledCommand(std::string command, std::chrono::milliseconds every);

  void watch(std::vector<pollfd>& watched) const;
  // Starts the command if it is due. Returns the result of a run that has ended. Never waits.
  std::optional<Result> look(Time now);
  // When look() has to be called next, besides events. nullopt: never.
  std::optional<Time> next() const;

 private:
  std::optional<Result> start(Time now);
  void read();

  const std::string command_;
  const std::chrono::milliseconds every_;
  Time due_{}, limit_{};
  std::optional<Process> process_;
  Fd output_;
  std::string text_;
};

}  // namespace weft::launch::internal
