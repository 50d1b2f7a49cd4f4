// The program weft-chaos, which `weft chaos` starts.
#include "weft/base/process/start.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/early.h"

int main(int argc, char** argv) {
  weft::end_process(
      weft::cli::weft_main(argc, argv, {.program = "weft-chaos", .chaos = weft::cli::chaos}));
}
