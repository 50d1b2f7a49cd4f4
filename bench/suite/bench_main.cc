// The program weft-bench, which `weft bench` starts.
#include <CLI/CLI.hpp>

#include "weft/cli/bench.h"
#include "weft/cli/internal/command_line.h"

namespace weft::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  weft bench calibrate                       what this machine's transports take, for the choice of algorithms
  weft bench collectives
  weft bench collectives --explain --ops all_reduce -n 4
  weft bench collectives --ops all_reduce --sizes 1024,26214400 --json
  weft bench training --models cnn,resnet18
  weft bench parallel                        ZeRO, tensor parallelism and pipelines of GPTs, beside DDP, FSDP2 and DeepSpeed)";

void add_options(CLI::App& app, BenchOptions& options) {
  app.add_option("what", options.what, "collectives, p2p, training, parallel (sharded, tensor, pipeline, stages), startup or calibrate")
      ->required();
  app.add_option("-n,--ranks", options.ranks, "Number of processes.")->check(CLI::Range(1, 4096));
  app.add_option("--rounds", options.rounds, "Rounds of each participant and case; 0: the default of the bench.");
  app.add_option("--transport", options.transport, "collectives: tcp measures weft over TCP instead of shared memory");
  app.add_option("--ops", options.ops, "collectives: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, barrier")
      ->delimiter(',');
  app.add_option("--sizes", options.sizes, "collectives: bytes of the whole vector, such as 64KiB or 25MB")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  app.add_flag("--explain", options.explain, "collectives: show the planner's choice over TCP and the predicted cost of the others");
  app.add_flag("--verify", options.verify, "collectives: measure all algorithms over TCP; count the choices within 10 % of the best");
  app.add_option("--worlds", options.worlds, "calibrate, --explain, --verify: world sizes")->delimiter(',');
  app.add_option("--models", options.models, "training: mlp, cnn, resnet18, resnet18-adamw; parallel: gpt-384, gpt-128")->delimiter(',');
  app.add_option("--impls", options.impls, "Only these variants of weft and peers.")->delimiter(',');
  app.add_option("--batch", options.batch, "training: samples per rank; 0: the default of the model");
  app.add_flag("--json", options.json, "JSON lines on stdout");
}

}  // namespace
}  // namespace weft::cli

int main(int argc, char** argv) {
  using namespace weft::cli;
  CLI::App app("Measure weft beside its peers, in one run.", "weft bench");
  app.footer(kExamples);
  app.option_defaults()->always_capture_default();
  BenchOptions options;
  int result = 0;
  add_options(app, options);
  app.callback([&] { result = bench(options); });
  return parse_and_run(app, argc, argv, result);
}
