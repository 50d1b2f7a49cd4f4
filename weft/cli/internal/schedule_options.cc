// Defines the options of `weft schedule`.
#include "weft/cli/internal/subcommand.h"

namespace weft::cli {
namespace {

constexpr About kSchedule{"schedule", "Show collective algorithms and pipeline schedules as data.",
                          R"(Examples:
  weft schedule list
  weft schedule show ring --ranks 8
  weft schedule show halving_doubling --ranks 8 --svg rabenseifner.svg
  weft schedule show hierarchical --hosts 2x4,3 --svg hosts.svg
  weft schedule show gossip --graph exponential --ranks 16
  weft schedule show 1f1b --stages 4 --micro-batches 8
  weft schedule show interleaved --stages 4 --virtual 2 --svg interleaved.svg
  weft schedule show automatic --costs 1,1.4,0.6,0.1 --memory 6)"};

void add_pipeline(CLI::App& sub, PipelineChoice& choice) {
  sub.add_option("--stages", choice.stages, "Pipeline stages, each a rank (default 4)");
  sub.add_option("--micro-batches", choice.micro_batches,
                 "Micro-batches of a pipeline step (default 8)");
  sub.add_option(
      "--virtual", choice.virtual_stages,
      "Model chunks of each pipeline rank (default: the fewest that the schedule supports)");
  sub.add_option("--costs", choice.costs,
                 "Times of forward, backward of inputs, backward of weights and a message in a "
                 "pipeline, such as 1,1,1,0")
      ->delimiter(',');
  sub.add_option(
      "--memory", choice.memory,
      "Most micro-batches that a rank holds at a time (automatic pipeline schedule only)");
}

}  // namespace

void add_choice(CLI::App& sub, ScheduleChoice& choice) {
  sub.add_option("--collective", choice.collective, "Collective: all_reduce, broadcast, …");
  sub.add_option("--ranks", choice.ranks, "World size (default: that of the topology, else 8)")
      ->check(CLI::Range(1, 1 << 18));
  sub.add_option("--hosts", choice.hosts,
                 "Ranks of each host: 2x4,3 means two hosts with four ranks and one with three");
  sub.add_option("--grid", choice.grid, "Rows x columns of a torus, such as 4x8");
  sub.add_option("--topology", choice.topology,
                 "TOML file that describes the hosts and the links between them");
  sub.add_option("--across", choice.across,
                 "Algorithm between the outermost groups (hierarchical only)");
  sub.add_option(
         "--chunk", choice.chunk_bytes,
         "Bytes of a chunk of a pipelined algorithm, such as 64KiB. 0: the algorithm's default")
      ->transform(CLI::AsSizeValue(true));
  sub.add_option("--radix", choice.radix,
                 "Children of a tree node plus one (knomial only; default 4)")
      ->check(CLI::Range(2, 1 << 18));
  sub.add_option("--root", choice.root, "Root rank of broadcast, reduce, gather and scatter");
}

void add_schedule(CLI::App& app, ScheduleCommand& command, int& result) {
  auto* sub = add(app, kSchedule);
  sub->require_subcommand(1);
  auto* list = sub->add_subcommand("list", "List the algorithms and their properties");
  list->add_flag("--json", command.json, "Print JSON lines on stdout");
  list->callback([&] { result = schedule_list(command.json); });
  auto* show = sub->add_subcommand(
      "show", "Show an algorithm round by round, or a pipeline schedule rank by rank");
  show->add_option("algorithm", command.algorithm,
                   "Name of the algorithm; weft schedule list shows all")
      ->required();
  add_choice(*show, command.choice);
  add_pipeline(*show, command.pipeline);
  show->add_option("--count", command.count,
                   "Number of elements. 0: a number that shows the algorithm well")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  show->add_option(
      "--graph", command.graph,
      "Graph of gossip: ring, grid, exponential, one_peer_exponential or random_matching");
  show->add_option("--seed", command.seed, "Seed of the gossip graph random_matching");
  show->add_option("--svg", command.svg, "Write the picture to this file");
  show->add_flag("--json", command.json, "Print every step or action as a JSON line on stdout");
  show->callback([&] { result = schedule_show(command); });
}

}  // namespace weft::cli
