// `weft scale`: changes the number of ranks of a live run.
#include <chrono>
#include <iostream>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/find_launcher.h"
#include "weft/launch/control.h"

namespace weft::cli {
int scale(const ScaleCommand& command) {
  const auto limit = std::chrono::seconds(command.timeout_s);
  const std::string answer = launch::ask_launcher(
      launcher_of(command.job), "scale " + std::to_string(command.ranks), Deadline::in(limit));
  if (answer.rfind("ok", 0) != 0) throw Error(Errc::kInvalidArgument, answer);
  std::cout << command.job << " has " << counted(command.ranks, "rank") << '\n';
  return 0;
}

}  // namespace weft::cli
