#include "weft/cli/commands.h"

namespace weft::cli {

int run(const launch::LaunchOptions& options) { return launch::launch(options); }

}  // namespace weft::cli
