#include "weft/cli/commands.h"
#include "weft/cli/internal/components.h"

namespace weft::cli {

int run(const launch::LaunchOptions& options) {
  check_servers(options.servers.count);
  return launch::launch(options);
}

}  // namespace weft::cli
