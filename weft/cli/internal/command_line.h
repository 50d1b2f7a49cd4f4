// Parses a command line with CLI11, runs the chosen subcommand and reports an error as one line.
// Used by weft and weft-bench.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "weft/base/error.h"

namespace weft::cli {

// Parses the words and runs the callback of the subcommand that they name. Returns the `result`
// that the callback set, or the exit code of an error: a wrong option, weft::Error, or any other
// exception. Help and version return 0.
int parse_and_run(CLI::App& app, int argc, char** argv, const int& result);

// The error of an unknown word. It names the component that the word needs, if this weft was built
// without it. Else it names the nearest subcommand or option, or points to the help.
Error unknown(const CLI::App& app, const std::string& word);

// Prints the error as one line on stderr, writes torchelastic's error file if requested, and
// returns the exit code.
int fail(const Error& error);

}  // namespace weft::cli
