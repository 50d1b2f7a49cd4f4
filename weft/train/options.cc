#include "weft/train/options.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/text/words.h"
#include "weft/optim/update_rule.h"
#include "weft/train/internal/config_writer.h"
#include "weft/train/internal/optimizer_options.h"

namespace weft::train {
namespace {

using parallel::Precision;
using parallel::Recompute;
using Shape = optim::LearningRate::Shape;

constexpr const char* kAutoMesh = "auto";

// Mesh axes from the sizes in [parallel]. The axis with the most communication comes last.
std::string mesh_of(const Config& config) {
  if (config.get_string("parallel.plan") == kAutoMesh) return kAutoMesh;
  std::string axes;
  for (const std::string name : {"pp", "dp", "fsdp", "ep", "cp", "tp"}) {
    const auto size = config.get_int("parallel." + name);
    if (size != 1 || name == "dp")
      axes += (axes.empty() ? "" : ",") + name + "=" + std::to_string(size);
  }
  return axes;
}

parallel::Plan plan_of(const Config& config) {
  parallel::Plan plan;
  plan.optimizer = internal::optimizer_of(config);
  plan.decay_vectors = config.get_bool("optimizer.decay_vectors");
  plan.seed = static_cast<std::uint64_t>(config.get_int("train.seed"));
  plan.schedule = schedule::pipeline::parse_algorithm(config.get_string("parallel.schedule"));
  plan.micro_batches = static_cast<int>(config.get_int("parallel.micro_batches"));
  if (config.get_bool("train.reproducible"))
    plan.micro_shards = static_cast<int>(config.get_int("train.micro_shards"));
  for (const std::int64_t cut : config.get_ints("parallel.cuts"))
    plan.cuts.push_back(static_cast<int>(cut));
  plan.codec = config.get_string("parallel.codec");
  plan.adasum = config.get_string("parallel.reduce") == "adasum";
  plan.data_parallel.bucket_bytes =
      static_cast<std::size_t>(config.get_double("parallel.bucket_mb") * (1 << 20));
  plan.data_parallel.overlap_forward = config.get_bool("parallel.overlap_forward");
  plan.context = config.get_string("parallel.context") == "ring" ? parallel::ContextMethod::kRing
                                                                 : parallel::ContextMethod::kHeads;
  plan.zero_stage = static_cast<int>(config.get_int("parallel.zero_stage"));
  plan.weights = parallel::parse_weights(config.get_string("parallel.weights"));
  const auto& recompute = config.get_string("train.recompute");
  plan.recompute = recompute == "none"   ? Recompute::kNone
                   : recompute == "full" ? Recompute::kFull
                                         : Recompute::kSelective;
  const auto& precision = config.get_string("train.precision");
  plan.precision = precision == "bf16"  ? Precision::kBf16
                   : precision == "f16" ? Precision::kF16
                                        : Precision::kAsItIs;
  plan.sync_batch_norm = config.get_bool("model.sync_batch_norm");
  plan.skip_not_finite = config.get_bool("train.skip_not_finite");
  plan.measure_noise = config.get_bool("train.noise_scale");
  return plan;
}

optim::LearningRate schedule_of(const Config& config) {
  const auto& name = config.get_string("schedule.name");
  optim::LearningRate rate;
  rate.shape = name == "cosine" ? Shape::kCosine : name == "step" ? Shape::kStep : Shape::kConstant;
  rate.period = config.get_double("schedule.period_epochs");
  rate.gamma = config.get_double("schedule.gamma");
  rate.minimum = config.get_double("schedule.minimum");
  rate.warmup = config.get_double("schedule.warmup_epochs");
  return rate;
}

void write_plan(const parallel::Plan& plan, internal::ConfigWriter& to) {
  to.set("optimizer.decay_vectors", plan.decay_vectors);
  to.set("train.seed", static_cast<std::int64_t>(plan.seed));
  to.set("train.reproducible", plan.micro_shards > 0);
  if (plan.micro_shards > 0) to.set("train.micro_shards", plan.micro_shards);
  to.set("train.recompute", plan.recompute == Recompute::kNone   ? "none"
                            : plan.recompute == Recompute::kFull ? "full"
                                                                 : "selective");
  to.set("train.precision", plan.precision == Precision::kBf16  ? "bf16"
                            : plan.precision == Precision::kF16 ? "f16"
                                                                : "f32");
  to.set("model.sync_batch_norm", plan.sync_batch_norm);
  to.set("train.skip_not_finite", plan.skip_not_finite);
  to.set("train.noise_scale", plan.measure_noise);
  to.set("parallel.schedule", schedule::pipeline::to_string(plan.schedule));
  to.set("parallel.micro_batches", plan.micro_batches);
  std::vector<std::string> cuts;
  for (const int cut : plan.cuts) cuts.push_back(std::to_string(cut));
  to.set("parallel.cuts", cuts);
  to.set("parallel.zero_stage", plan.zero_stage);
  to.set("parallel.weights", parallel::to_string(plan.weights));
  to.set("parallel.codec", plan.codec);
  to.set("parallel.reduce", plan.adasum ? "adasum" : "average");
  to.set("parallel.bucket_mb", static_cast<double>(plan.data_parallel.bucket_bytes) / (1 << 20));
  to.set("parallel.overlap_forward", plan.data_parallel.overlap_forward);
  to.set("parallel.context", plan.context == parallel::ContextMethod::kRing ? "ring" : "heads");
}

strategy::Strategy strategy_of(const Config& config) {
  return {.name = config.get_string("strategy.name"),
          .period = config.get_int("strategy.period"),
          .sync_steps = config.get_int("strategy.sync_steps"),
          .adapt_steps = config.get_int("strategy.adapt_steps"),
          .lr = config.get_double("strategy.lr"),
          .momentum = config.get_double("strategy.momentum"),
          .fragments = static_cast<int>(config.get_int("strategy.fragments")),
          .beta = config.get_double("strategy.beta"),
          .graph = config.get_string("strategy.graph"),
          .staleness = config.get_int("strategy.staleness"),
          .delay_compensation = config.get_double("strategy.delay_compensation"),
          .backup = static_cast<int>(config.get_int("strategy.backup")),
          .codec = config.get_string("strategy.codec")};
}

void write_strategy(const strategy::Strategy& strategy, internal::ConfigWriter& to) {
  to.set("strategy.name", strategy.name);
  to.set("strategy.period", strategy.period);
  to.set("strategy.sync_steps", strategy.sync_steps);
  to.set("strategy.adapt_steps", strategy.adapt_steps);
  to.set("strategy.lr", strategy.lr);
  to.set("strategy.momentum", strategy.momentum);
  to.set("strategy.fragments", strategy.fragments);
  to.set("strategy.beta", strategy.beta);
  to.set("strategy.graph", strategy.graph);
  to.set("strategy.staleness", strategy.staleness);
  to.set("strategy.delay_compensation", strategy.delay_compensation);
  to.set("strategy.backup", static_cast<std::int64_t>(strategy.backup));
  to.set("strategy.codec", strategy.codec);
}

constexpr const char* kOnStraggler[] = {"warn", "rebalance", "replace"};

OnStraggler parse_on_straggler(const std::string& name) {
  const auto found = std::find(std::begin(kOnStraggler), std::end(kOnStraggler), name);
  return static_cast<OnStraggler>(found - std::begin(kOnStraggler));
}

bool is_power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace

bool saves_checkpoints(const Options& options) {
  return options.checkpoint_every > 0 || options.checkpoint_steps > 0 ||
         options.checkpoint_minutes > 0 || options.keep_best;
}

Options options_of(const Config& config) {
  Options options;
  options.epochs = config.get_int("train.epochs");
  options.max_steps = config.get_int("train.max_steps");
  options.batch = config.get_int("train.batch");
  options.batch_per_rank = config.get_int("train.batch_per_rank");
  options.batch_schedule = config.get_string("train.batch_schedule");
  options.max_batch = config.get_int("train.max_batch");
  options.balance_by_speed = config.get_string("train.balance") == "speed";
  options.on_straggler = parse_on_straggler(config.get_string("train.on_straggler"));
  options.prefetch = static_cast<int>(config.get_int("data.prefetch"));
  options.mesh = mesh_of(config);
  options.plan = plan_of(config);
  options.device = config.get_string("train.device");
  options.strategy = strategy_of(config);
  options.schedule = schedule_of(config);
  options.reference_batch = config.get_int("schedule.reference_batch");
  options.eval_every = config.get_int("train.eval_every");
  options.eval_steps = config.get_int("train.eval_steps");
  options.eval_batch = config.get_int("train.eval_batch");
  options.checkpoint_every = config.get_int("train.checkpoint_every");
  options.checkpoint_steps = config.get_int("train.checkpoint_steps");
  options.checkpoint_minutes = config.get_double("train.checkpoint_minutes");
  options.keep = config.get_int("train.keep");
  options.keep_best = config.get_bool("train.keep_best");
  options.patience = config.get_int("train.patience");
  options.best_metric = config.get_string("train.best_metric");
  options.best_is = config.get_string("train.best_is");
  options.min_improvement = config.get_double("train.min_improvement");
  options.checkpoint_async = config.get_bool("train.checkpoint_async");
  options.max_not_finite = config.get_int("train.max_not_finite");
  options.copy_steps = config.get_int("train.copy_steps");
  options.compare_steps = config.get_int("train.compare_steps");
  options.on_resize = config.get_string("train.on_resize");
  options.verify_steps = config.get_int("train.verify_steps");
  options.log_every = config.get_int("train.log_every");
  options.peak_tflops = config.get_double("train.peak_tflops");
  options.dir = config.get_string("run.dir");
  options.name = config.get_string("run.name");
  return options;
}

Options load_options(const std::string& file, const std::vector<std::string>& assignments) {
  Config config = Config::load(file, options_schema());
  for (const auto& assignment : assignments) config.set(assignment);
  for (const auto& row : config.describe()) {
    if (!row.key.starts_with("comm.") || row.value == row.fallback) continue;
    throw Error(Errc::kBadConfig, row.key + " (" + row.origin +
                                      ") has no effect on a program: pass InitOptions to "
                                      "weft::init() in its place");
  }
  return options_of(config);
}

Config config_of(const Options& options) {
  Config config(options_schema());
  internal::ConfigWriter to(config);
  to.set("train.epochs", options.epochs);
  to.set("train.max_steps", options.max_steps);
  to.set("train.batch", options.batch);
  to.set("train.batch_per_rank", options.batch_per_rank);
  to.set("train.batch_schedule", options.batch_schedule);
  to.set("train.max_batch", options.max_batch);
  to.set("train.balance", options.balance_by_speed ? "speed" : "even");
  to.set("train.on_straggler", kOnStraggler[static_cast<int>(options.on_straggler)]);
  to.set("data.prefetch", options.prefetch);
  to.set("train.device", options.device);
  to.set("train.eval_every", options.eval_every);
  to.set("train.eval_steps", options.eval_steps);
  to.set("train.eval_batch", options.eval_batch);
  to.set("train.checkpoint_every", options.checkpoint_every);
  to.set("train.checkpoint_steps", options.checkpoint_steps);
  to.set("train.checkpoint_minutes", options.checkpoint_minutes);
  to.set("train.keep", options.keep);
  to.set("train.keep_best", options.keep_best);
  to.set("train.patience", options.patience);
  to.set("train.best_metric", options.best_metric);
  to.set("train.best_is", options.best_is);
  to.set("train.min_improvement", options.min_improvement);
  to.set("train.checkpoint_async", options.checkpoint_async);
  to.set("train.max_not_finite", options.max_not_finite);
  to.set("train.copy_steps", options.copy_steps);
  to.set("train.compare_steps", options.compare_steps);
  to.set("train.on_resize", options.on_resize);
  to.set("train.verify_steps", options.verify_steps);
  to.set("train.log_every", options.log_every);
  to.set("train.peak_tflops", options.peak_tflops);
  if (options.mesh == kAutoMesh) {
    to.set("parallel.plan", kAutoMesh);
  } else {
    for (const auto& [name, size] : plan::parse_axes(options.mesh))
      to.set("parallel." + name, size);
  }
  internal::write_optimizer(options.plan.optimizer, to);
  write_plan(options.plan, to);
  write_strategy(options.strategy, to);
  const auto shape = options.schedule.shape;
  to.set("schedule.name", shape == Shape::kCosine ? "cosine"
                          : shape == Shape::kStep ? "step"
                                                  : "constant");
  to.set("schedule.period_epochs", options.schedule.period);
  to.set("schedule.gamma", options.schedule.gamma);
  to.set("schedule.minimum", options.schedule.minimum);
  to.set("schedule.warmup_epochs", options.schedule.warmup);
  to.set("schedule.reference_batch", options.reference_batch);
  to.set("run.dir", options.dir);
  to.set("run.name", options.name);
  return config;
}

Batches plan_batches(const Options& options, int replicas, std::int64_t samples) {
  Batches batches;
  batches.global = options.batch_per_rank > 0 ? options.batch_per_rank * replicas : options.batch;
  if (batches.global < replicas) {
    throw Error(Errc::kBadConfig, "train.batch = " + std::to_string(batches.global) +
                                      " cannot be divided over " + counted(replicas, "rank") +
                                      "; give at least one sample to each");
  }
  batches.per_epoch = (samples + batches.global - 1) / batches.global;
  batches.base_rate = optim::lr_of(options.plan.optimizer.rule);
  if (options.reference_batch > 0)
    batches.base_rate =
        optim::linear_scaling(batches.base_rate, 1, batches.global, options.reference_batch);
  const auto shards = options.plan.micro_shards;
  if (shards == 0) return batches;
  if (!is_power_of_two(shards) || shards % replicas != 0) {
    throw Error(Errc::kBadConfig,
                "train.micro_shards = " + std::to_string(shards) +
                    " must be a power of two and a multiple of the " + std::to_string(replicas) +
                    " ranks that share the batch, where train.reproducible is set");
  }
  const auto refuse = [](const std::string& why) {
    throw Error(Errc::kBadConfig, why + " where train.reproducible is set");
  };
  if (options.balance_by_speed) {
    refuse(
        "train.balance = \"speed\" splits batches by times, which no two runs have alike; leave it "
        "\"even\"");
  }
  if (options.on_resize == "scale") {
    refuse(
        "train.on_resize = \"scale\" changes the batch with the number of ranks; leave it at "
        "\"keep_global_batch\"");
  }
  if (options.on_straggler == OnStraggler::kRebalance) {
    refuse(
        "train.on_straggler = \"rebalance\" splits batches by times, which no two runs have alike; "
        "leave it \"warn\"");
  }
  if (options.plan.sync_batch_norm) {
    refuse(
        "model.sync_batch_norm takes statistics over what the ranks have at a time, which differs "
        "at each number of ranks; leave it false");
  }
  if (options.plan.codec != "none") {
    refuse(
        "parallel.codec rounds gradients differently at each number of ranks; leave it at "
        "\"none\"");
  }
  return batches;
}

}  // namespace weft::train
