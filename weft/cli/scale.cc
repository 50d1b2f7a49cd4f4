// `weft scale`: changes the number of ranks of a live run.
#include <charconv>
#include <chrono>
#include <iostream>

#include "weft/base/error.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/run_name.h"
#include "weft/launch/control.h"

namespace weft::cli {
namespace {

// `job`: the process number of a launcher, or a run.
pid_t launcher_of(const std::string& job) {
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(job.data(), job.data() + job.size(), pid);
  if (error == std::errc() && end == job.data() + job.size() && pid > 0) return pid;
  return launch::launcher_of_run(run_folder_of(job));
}

}  // namespace

int scale(const ScaleCommand& command) {
  const auto limit = std::chrono::seconds(command.timeout_s);
  const std::string answer = launch::ask_launcher(
      launcher_of(command.job), "scale " + std::to_string(command.ranks), Deadline::in(limit));
  if (answer.rfind("ok", 0) != 0) throw Error(Errc::kInvalidArgument, answer);
  std::cout << command.job << " has " << command.ranks << " ranks\n";
  return 0;
}

}  // namespace weft::cli
