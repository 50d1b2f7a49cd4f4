// Programs of their own for subcommands that most users do not run. They are beside weft.
#pragma once

#include <string_view>

namespace weft::cli {

// The program of `weft VERB WORD`; empty: it has none.
constexpr std::string_view own_program(std::string_view verb, std::string_view word) {
  if (verb == "bench") return "weft-bench";
  if (verb == "chaos") return "weft-chaos";
  if (verb == "linear") return "weft-linear";
  return verb == "plan" && word == "validate" ? "weft-plan-validate" : "";
}

// Its arguments. weft-bench takes the verb for its name.
inline char** arguments_for(std::string_view program, char** argv) {
  return program == "weft-bench" ? argv + 1 : argv;
}

}  // namespace weft::cli
