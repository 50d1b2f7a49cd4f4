#include "weft/cli/commands.h"

int main(int argc, char** argv) { return weft::cli::weft_main(argc, argv); }
