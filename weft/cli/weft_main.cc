#include "weft/base/json/error_file.h"
#include "weft/base/process/start.h"
#include "weft/cli/commands.h"

namespace {

// Runs before the initializers of libtorch, which need memory.
__attribute__((section(".preinit_array"), used)) void (*const first)() = [] {
  weft::report_exhaustion_on_terminate();
};

}  // namespace

int main(int argc, char** argv) { weft::end_process(weft::cli::weft_main(argc, argv)); }
