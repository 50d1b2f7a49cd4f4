#include "weft/cli/bench.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "bench/suite/internal/benches.h"
#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::cli {
namespace bench_internal {

bool wanted(const BenchOptions& options, const std::string& impl) {
  return options.impls.empty() ||
         std::find(options.impls.begin(), options.impls.end(), impl) != options.impls.end();
}

std::shared_ptr<Participant> start_peer(const PeerProgram& program, const Signals& signals) {
  try {
    return std::make_shared<Participant>(program.impl, program.argv, program.environment, signals);
  } catch (const Error& error) {
    log_warn("left out: " + program.impl + ": " + error.message());
    return nullptr;
  }
}

namespace {

void check_names(const char* what, const std::vector<std::string>& names,
                 std::span<const std::string_view> known) {
  for (const auto& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string all;
    for (const auto& one : known) all += (all.empty() ? "" : ", ") + std::string(one);
    throw Error(Errc::kBadConfig,
                std::string("unknown ") + what + " '" + name + "'; there are " + all);
  }
}

constexpr std::array<std::string_view, 10> kBenches = {
    "collectives", "p2p",      "training", "parallel", "sharded",
    "tensor",      "pipeline", "stages",   "startup",  "calibrate"};
constexpr std::array<std::string_view, 8> kOps = {"all_reduce", "all_gather", "reduce_scatter",
                                                  "broadcast",  "reduce",     "all_to_all",
                                                  "barrier",    "ping_pong"};
// Operations that have schedules.
constexpr std::array<std::string_view, 9> kPlanned = {"all_reduce", "all_gather", "reduce_scatter",
                                                      "broadcast",  "reduce",     "gather",
                                                      "scatter",    "all_to_all", "barrier"};
constexpr std::array<std::string_view, 6> kModels = {
    "mlp", "cnn", "resnet18", "resnet18-adamw", "gpt-384", "gpt-128"};
constexpr std::array<std::string_view, 2> kTransports = {"auto", "tcp"};
constexpr std::array<std::string_view, 2> kCores = {"near", "far"};
constexpr std::string_view kImpls[] = {"weft-net",
                                       "weft",
                                       "weft-prepared",
                                       "weft-ordinary",
                                       "weft-tcp",
                                       "weft-parallelize",
                                       "weft-private",
                                       "weft-alone",
                                       "weft-alone-plain",
                                       "weft-zero1",
                                       "weft-zero2",
                                       "weft-zero3",
                                       "weft-tensor",
                                       "weft-one",
                                       "openmpi",
                                       "openmpi-prepared",
                                       "openmpi5",
                                       "openmpi5-prepared",
                                       "openmpi-tcp",
                                       "weft-zero1-private",
                                       "weft-zero2-private",
                                       "weft-zero3-private",
                                       "weft-gpipe",
                                       "weft-1f1b",
                                       "weft-zb_h1",
                                       "weft-zb_h2",
                                       "mpich",
                                       "mpich-prepared",
                                       "gloo",
                                       "ideal",
                                       "pytorch-ddp",
                                       "pytorch-ddp-tuned",
                                       "pytorch-alone",
                                       "pytorch-alone-tuned",
                                       "pytorch-fsdp2",
                                       "deepspeed-zero1",
                                       "deepspeed-zero3"};

void check(const BenchOptions& options) {
  check_names("bench", {options.what}, kBenches);
  if (options.explain || options.verify) {
    check_names("op", options.ops, kPlanned);
  } else {
    check_names("op", options.ops, kOps);
  }
  check_names("model", options.models, kModels);
  check_names("transport", {options.transport}, kTransports);
  check_names("implementation", options.impls, kImpls);
  check_names("cores", options.cores, kCores);
  if (options.ranks < 1 || options.ranks > 64)
    throw Error(Errc::kBadConfig, "ranks must be 1 to 64, got " + std::to_string(options.ranks));
  for (const int world : options.worlds) {
    if (world < 2 || world > 64)
      throw Error(Errc::kBadConfig, "worlds must be 2 to 64 ranks, got " + std::to_string(world));
  }
  if (options.rounds < 0 || options.batch < 0)
    throw Error(Errc::kBadConfig, "rounds and batch can't be negative");
}

// Runs one of the benches of parallel training, or all.
int bench_parallel(const BenchOptions& options, const Signals& signals) {
  struct Form {
    const char* name;
    int (*run)(const BenchOptions&, const Signals&);
  };
  int result = 0;
  for (const Form& form : {Form{"sharded", bench_sharded}, Form{"tensor", bench_tensor},
                           Form{"pipeline", bench_pipeline}, Form{"stages", bench_stages}}) {
    if (options.what == "parallel" || options.what == form.name)
      result = std::max(result, form.run(options, signals));
  }
  return result;
}

}  // namespace
}  // namespace bench_internal

int bench(const BenchOptions& options) {
  using namespace bench_internal;
  check(options);
  const Signals signals;
  try {
    if (options.what == "collectives" && options.explain) return bench_explain(options);
    if (options.what == "collectives" && options.verify) return bench_verify(options, signals);
    if (options.what == "collectives") return bench_collectives(options, signals);
    if (options.what == "p2p") return bench_p2p(options, signals);
    if (options.what == "calibrate") return bench_calibrate(options, signals);
    if (options.what == "training") return bench_training(options, signals);
    if (options.what == "startup") return bench_startup(options, signals);
    return bench_parallel(options, signals);
  } catch (const Interrupted& interrupted) {
    log_error("interrupted: the bench is not complete");
    return 128 + interrupted.signal;
  }
}

}  // namespace weft::cli
