// The program weft-bench, which `weft bench` starts. It has a subcommand for each bench.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "weft/cli/bench.h"
#include "weft/cli/internal/command_line.h"
#include "weft/cli/internal/help.h"

namespace weft::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  weft bench calibrate
  weft bench collectives
  weft bench collectives --explain --ops all_reduce -n 4
  weft bench collectives --ops all_reduce --sizes 1024,26214400 --json
  weft bench collectives --impls weft-ordinary,openmpi --sizes 64KiB,1MiB --cores near,far
  weft bench training --models cnn,resnet18
  weft bench parallel
  weft bench BENCH --help)";

enum Kind { kCollective, kMessage, kCalibration, kTraining, kParallel, kOther };

struct Bench {
  const char* name;
  Kind kind;
  const char* line;
};

constexpr Bench kBenches[] = {
    {"collectives", kCollective, "Collectives beside Open MPI, MPICH and Gloo."},
    {"p2p", kMessage, "Point-to-point messages (ping-pong) beside Open MPI and Gloo."},
    {"calibrate", kCalibration,
     "Measure the transports of this machine; weft chooses its algorithms by the result."},
    {"training", kTraining, "Data-parallel training steps beside PyTorch DDP."},
    {"parallel", kParallel, "All of sharded, tensor, pipeline and stages."},
    {"sharded", kParallel, "Data parallelism and ZeRO on GPTs, beside DDP, FSDP2 and DeepSpeed."},
    {"tensor", kParallel, "Tensor parallelism on a GPT's layers, beside one rank."},
    {"pipeline", kParallel, "Pipeline schedules, beside their own bounds."},
    {"stages", kParallel, "Automatic stage cuts, beside the best cuts."},
    {"startup", kOther,
     "Time from the command to the first training step, beside torchrun with DDP."},
};

void add_options(CLI::App& sub, Kind kind, BenchOptions& options) {
  sub.add_option("-n,--ranks", options.ranks, "Number of ranks")->check(CLI::Range(1, 256));
  sub.add_option("--rounds", options.rounds,
                 "Rounds of each participant and case. 0: the default of the bench");
  if (kind == kCollective || kind == kMessage) {
    sub.add_option("--transport", options.transport,
                   "Transport of weft: auto (shared memory) or tcp");
    sub.add_option("--sizes", options.sizes, "Bytes of the whole vector, such as 64KiB or 25MB")
        ->delimiter(',')
        ->transform(CLI::AsSizeValue(true));
    sub.add_option("--cores", options.cores,
                   "Cores of the ranks: near (they share a cache), far (they share none), or both, "
                   "measured one after the other. None: the first cores")
        ->delimiter(',');
  }
  if (kind == kCollective) {
    sub.add_option("--ops", options.ops,
                   "Collectives: all_reduce, all_gather, reduce_scatter, broadcast, reduce, "
                   "all_to_all, barrier")
        ->delimiter(',');
    sub.add_flag("--explain", options.explain,
                 "Show the algorithm chosen over TCP, and the predicted cost of the others");
    sub.add_flag("--verify", options.verify,
                 "Measure all algorithms over TCP, and count the choices within 10 % of the best");
  }
  if (kind == kCollective || kind == kCalibration)
    sub.add_option("--worlds", options.worlds, "World sizes")->delimiter(',');
  if (kind == kTraining) {
    sub.add_option("--models", options.models, "Models: mlp, cnn, resnet18, resnet18-adamw")
        ->delimiter(',');
    sub.add_option("--batch", options.batch, "Samples for each rank. 0: the default of the model");
  }
  if (kind == kParallel)
    sub.add_option("--models", options.models, "Models: gpt-384, gpt-128")->delimiter(',');
  sub.add_option("--impls", options.impls, "Measure only these variants of weft and peers")
      ->delimiter(',');
  sub.add_flag("--json", options.json, "Print JSON lines on stdout");
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) try {
  using namespace weft::cli;
  CLI::App app("Measure weft and its peers in one run.", "weft bench");
  app.formatter(std::make_shared<HelpFormatter>());
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);
  BenchOptions options;
  int result = 0;
  for (const Bench& one : kBenches) {
    auto* sub = app.add_subcommand(one.name, one.line);
    add_options(*sub, one.kind, options);
    sub->callback([&, name = one.name] {
      options.what = name;
      result = bench(options);
    });
  }
  app.footer(kExamples);
  return parse_and_run(app, argc, argv, result);
} catch (const std::exception& error) {
  std::fprintf(stderr, "weft bench: %s\n", error.what());
  return 70;
}
