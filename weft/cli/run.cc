#include "weft/cli/commands.h"

namespace weft::cli {

int run(const elastic::LaunchOptions& options) { return elastic::launch(options); }

}  // namespace weft::cli
