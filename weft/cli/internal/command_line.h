// Parses a command line with CLI11, runs the chosen subcommand and reports what went wrong as one
// line. For weft and weft-bench.
#pragma once

#include <CLI/CLI.hpp>

#include "weft/base/error.h"

namespace weft::cli {

// Parses the words, which runs the callback of the subcommand they name. Returns `result` as that
// callback left it, else the exit code of the error: a wrong option, weft::Error, or any other
// exception. Help and version return 0.
int parse_and_run(CLI::App& app, int argc, char** argv, const int& result);

// "; did you mean …?" with the subcommand or option that is nearest to a word that nothing knows,
// else where to look.
std::string hint_for(const CLI::App& app, const std::string& word);

// Prints the error as one line on stderr, writes torchelastic's error file where one is wanted, and
// returns the exit code.
int fail(const Error& error);

}  // namespace weft::cli
