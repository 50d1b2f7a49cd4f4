#include "weft/cli/internal/start_ranks.h"

#include <ATen/Parallel.h>

#include <string>

#include "weft/base/error.h"
#include "weft/cli/internal/ranks.h"
#include "weft/comm/environment.h"
#include "weft/launch/launcher.h"

namespace weft::cli {

int start_ranks(std::optional<int> ranks, const std::function<int()>& rank) {
  const auto identity = comm::discover(comm::Environment::process());
  if (identity.source != "alone") {
    if (ranks && *ranks != identity.world) {
      throw Error(Errc::kBadConfig, "-n " + std::to_string(*ranks) + " disagrees with " +
                                        identity.source + ", which started " +
                                        std::to_string(identity.world) + " ranks; leave out -n");
    }
    return rank();
  }
  if (ranks.value_or(1) == 1) return rank();
  share_cores(*ranks);
  launch::LaunchOptions launching;
  launching.nproc_per_node = std::to_string(*ranks);
  launching.rank0_keeps_terminal = true;
  return launch::launch_forked(launching, [&](int) { return rank(); });
}

void use_threads() {
  if (const auto threads = threads_by_environment()) at::set_num_threads(*threads);
}

}  // namespace weft::cli
