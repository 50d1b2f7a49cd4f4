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

// Adds --set, which sets keys of a recipe.
inline void add_assignments(CLI::App& sub, std::vector<std::string>& assignments) {
  sub.add_option("--set", assignments, "Set a key of the recipe: key=value. May be repeated")
      ->allow_extra_args(false);
}
// Adds the options of `weft train`.
void add_train_options(CLI::App& sub, TrainCommand& command);
// Adds the options of a launch that `weft train` and `weft run` share: nodes, recovery, hangs,
// requests to go, and the number of ranks.
void add_launching(CLI::App& sub, launch::LaunchOptions& options);
CLI::Option* add_http(CLI::App& sub, std::string& address);
// Options that `weft schedule show` and `weft plan simulate` share.
void add_choice(CLI::App& sub, ScheduleChoice& choice);

// Add `weft chaos`, `weft schedule`, `weft plan`, `weft tokenizer` and `weft linear`, which is of a
// component (components.h). `beyond`: the words from "--" on, which the parser does not see.
void add_chaos(CLI::App& app, ChaosCommand& command, const std::vector<std::string>& beyond,
               int (*run)(const ChaosCommand&), int& result);
void add_schedule(CLI::App& app, ScheduleCommand& command, int& result);
struct PlanCommands {
  SimulateCommand simulate;
  MeshCommand mesh;
  AutoCommand search;
  ProfileCommand profile;
  PredictCommand predict;
  ValidateCommand validate;
};
void add_plan(CLI::App& app, PlanCommands& commands, const OwnFunctions& own, int& result);
// Adds the commands of the planner, a component, to `weft plan`, and their examples.
void add_planner(CLI::App& plan, PlanCommands& commands, const OwnFunctions& own, int& result);
void add_tokenizer(CLI::App& app, TokenizerCommand& command, int& result);
void add_linear(CLI::App& app, LinearCommand& command, const OwnFunctions& own, int& result);

}  // namespace weft::cli
