#include "weft/cli/internal/checks.h"
#include "weft/comm/init.h"
#include "weft/comm/topology/find.h"

namespace weft::cli {

std::string found_topology() {
  const Group world = init();
  const auto found = comm::topology::find_topology(world);
  return world.rank() == 0 ? "# " + found.describe() + '\n' + found.to_toml() : "";
}

}  // namespace weft::cli
