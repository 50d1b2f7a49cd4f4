// `weft stop`: ends a live job with a checkpoint.
#include <chrono>
#include <iostream>

#include "weft/base/text/numbers.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/find_launcher.h"
#include "weft/launch/control.h"

namespace weft::cli {
namespace {

// The launcher kills the ranks at the end of the grace period, so it answers soon after it. Without
// a grace period of this command, the launcher's own is not known here.
constexpr auto kSlack = std::chrono::seconds(30), kLongest = std::chrono::seconds(8 * 86400);

}  // namespace

int stop(const StopCommand& command) {
  std::string request = "stop";
  Deadline deadline = Deadline::in(kLongest);
  if (command.grace_s) {
    request += formatted(" %.3f", *command.grace_s);
    deadline = Deadline::in(
        kSlack + std::chrono::milliseconds(static_cast<std::int64_t>(*command.grace_s * 1e3)));
  }
  const std::string answer = launch::ask_launcher(launcher_of(command.job), request, deadline);
  const bool ended = answer.rfind("ok", 0) == 0;
  const std::string text = !ended ? answer : answer.size() > 3 ? answer.substr(3) : "";
  (ended ? std::cout : std::cerr) << (ended ? "" : "weft: ") << command.job << " has ended"
                                  << (text.empty() ? "" : ": " + text) << std::endl;
  return ended ? 0 : 1;
}

}  // namespace weft::cli
