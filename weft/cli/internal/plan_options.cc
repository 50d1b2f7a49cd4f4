// Defines the options of `weft plan`.
#include "weft/cli/internal/components.h"
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {
namespace {

constexpr About kPlan{"plan", "Show meshes of ranks, and predict the time of collectives.",
                      R"(Examples:
  weft plan simulate ring,double_binary_tree,hierarchical --hosts 1250x8
  weft plan simulate ring,torus --grid 32x32 --size 1MiB,1GiB
  weft plan simulate hierarchical --topology cluster.toml --across recursive_doubling --json
  weft plan show pp=2,dp=2,tp=2 --hosts 2x4)"};

void add_mesh(CLI::App& plan, MeshCommand& command, int& result) {
  auto* show = plan.add_subcommand(
      "show", "Show a mesh of ranks: the place of each rank, and which axes cross hosts");
  show->add_option("axes", command.axes,
                   "Axes with their sizes, such as pp=2,dp=0,tp=2 (of dp, fsdp, tp, cp, ep, pp). "
                   "Adjacent ranks belong to the last axis. "
                   "0: the rest")
      ->required();
  show->add_option("-n,--ranks", command.ranks,
                   "Number of ranks (default: those of the hosts, else the product of the sizes)");
  show->add_option("--hosts", command.hosts,
                   "Ranks of each host: 2x4,3 means two hosts with four ranks and one with three");
  show->add_option("--svg", command.svg, "Write the picture to this file");
  show->add_flag("--json", command.json, "Print a JSON line for each rank on stdout");
  show->callback([&] { result = plan_show(command); });
}

void add_simulate(CLI::App& plan, SimulateCommand& command, int& result) {
  auto* simulate = plan.add_subcommand(
      "simulate",
      "Simulate algorithms step by step over the links of a topology: time, bytes, critical path");
  simulate
      ->add_option("algorithms", command.algorithms,
                   "Names of algorithms, with commas between; weft schedule list shows all")
      ->required()
      ->delimiter(',');
  add_choice(*simulate, command.choice);
  simulate
      ->add_option("--size", command.sizes,
                   "Bytes of the message (the longer of input and output), such as 64KiB or 25MB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(true));
  simulate->add_flag("--json", command.json, "Print JSON lines on stdout");
  simulate->callback([&] { result = plan_simulate(command); });
}

}  // namespace

void add_plan(CLI::App& app, PlanCommands& commands, [[maybe_unused]] const OwnFunctions& own,
              int& result) {
  auto* sub = add(app, kPlan);
  sub->require_subcommand(1);
  if constexpr (has(kPlanner)) add_planner(*sub, commands, own, result);
  add_simulate(*sub, commands.simulate, result);
  add_mesh(*sub, commands.mesh, result);
}

}  // namespace weft::cli
