// The program weft-linear, which `weft linear` starts.
#include "weft/base/process/start.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/early.h"

int main(int argc, char** argv) {
  weft::end_process(weft::cli::weft_main(argc, argv,
                                         {.program = "weft-linear",
                                          .linear_train = weft::cli::linear_train,
                                          .linear_predict = weft::cli::linear_predict}));
}
