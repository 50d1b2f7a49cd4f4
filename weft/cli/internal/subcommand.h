// Adds the subcommands of `weft` to its command line.
#pragma once

#include <CLI/CLI.hpp>

#include "weft/cli/commands.h"

namespace weft::cli {

// A subcommand's name, its line in `weft --help`, and the examples in its own help.
struct About {
  const char* name;
  const char* line;
  const char* examples;
};

inline CLI::App* add(CLI::App& app, const About& about) {
  auto* sub = app.add_subcommand(about.name, about.line);
  sub->footer(about.examples);
  return sub;
}

// Add `weft schedule`, `weft plan`, `weft tokenizer` and `weft linear`.
void add_schedule(CLI::App& app, ScheduleCommand& command, int& result);
void add_plan(CLI::App& app, SimulateCommand& command, MeshCommand& mesh, int& result);
void add_tokenizer(CLI::App& app, TokenizerCommand& command, int& result);
void add_linear(CLI::App& app, LinearCommand& command, int& result);

}  // namespace weft::cli
