#include "weft/train/internal/settings.h"

#include "weft/base/error.h"
#include "weft/comm/init.h"
#include "weft/schedule/pipeline/pipeline.h"
#include "weft/train/internal/limits.h"
#include "weft/train/internal/optimizer_options.h"

namespace weft::train::internal {
namespace {

// Sums of two such numbers fit into 64 bits.
constexpr double kMaxSamples = 1e12;
// A number up to this one fits into an int.
constexpr double kMaxInt = 1e9;

std::vector<std::string> schedules() {
  std::vector<std::string> names;
  for (const auto algorithm : schedule::pipeline::algorithms()) {
    if (algorithm != schedule::pipeline::Algorithm::kForwardOnly)
      names.emplace_back(to_string(algorithm));
  }
  return names;
}

std::vector<std::string> strategies() {
  return {strategy::names().begin(), strategy::names().end()};
}

// Those whose workers have weights of their own.
std::vector<std::string> worker_strategies() {
  return {strategy::names().begin() + 1, strategy::names().end()};
}

constexpr const char *kAutoMesh = "auto", *kPredictPlan = "predict";

// Options::mesh and predict_plan as a recipe has them.
struct MeshKeys {
  std::string plan = "manual";
  std::int64_t dp = 0, fsdp = 1, tp = 1, pp = 1, cp = 1, ep = 1;

  // The axis with the most communication comes last.
  std::vector<std::pair<std::string, std::int64_t*>> axes() {
    return {{"pp", &pp}, {"dp", &dp}, {"fsdp", &fsdp}, {"ep", &ep}, {"cp", &cp}, {"tp", &tp}};
  }
};

MeshKeys mesh_keys_of(const Options& options) {
  MeshKeys keys;
  if (options.mesh.is_auto()) {
    keys.plan = kAutoMesh;
    return keys;
  }
  if (options.predict_plan) keys.plan = kPredictPlan;
  const auto axes = keys.axes();
  for (const auto& [name, size] : options.mesh.axes()) {
    const auto axis = std::find_if(axes.begin(), axes.end(), [&, &wanted = name](const auto& one) {
      return one.first == wanted;
    });
    if (axis == axes.end())
      throw Error(Errc::kBadConfig, "mesh \"" + options.mesh.text() + "\": the axis " + name +
                                        " is not one of dp, fsdp, tp, pp, cp and ep");
    *axis->second = size;
  }
  return keys;
}

plan::MeshSpec mesh_of(MeshKeys keys) {
  if (keys.plan == kAutoMesh) return kAutoMesh;
  std::vector<plan::Axis> axes;
  for (const auto& [name, size] : keys.axes()) {
    if (*size != 1 || name == "dp") axes.push_back({name, static_cast<int>(*size)});
  }
  return plan::MeshSpec(axes);
}

void batch_settings(Options& o, SettingsVisitor& visit) {
  auto seed = static_cast<std::int64_t>(o.plan.seed);
  bool reproducible = o.plan.micro_shards > 0;
  std::string device = o.device.text();
  int shards = reproducible ? o.plan.micro_shards : 4;
  visit("data.prefetch", o.prefetch, "Batches that a background thread prepares ahead. 0: none.",
        between(0, 64));
  visit("train.epochs", o.epochs, "Passes over the training data.", at_least(0));
  visit("train.batch", o.batch, "Global batch size: samples of a step over all ranks.",
        between(1, kMaxSamples));
  visit("train.batch_per_rank", o.batch_per_rank,
        "Samples of a step for each replica. 0: train.batch divided over the replicas.",
        between(0, kMaxSamples));
  visit("train.max_steps", o.max_steps,
        "Most steps; training ends after train.epochs at the latest. The schedule follows "
        "train.epochs. 0: no limit.",
        at_least(0));
  visit("train.device", device,
        "Where a rank computes: cpu; cuda (the device with its number on the host); cuda:0, … (one "
        "device for all ranks); or auto (a device of its own where there is one, else the CPU). "
        "Devices are supported with dp alone (docs/gpus.md).");
  visit.choice(
      "train.precision", o.plan.precision,
      "Precision of forward and loss: f32, bf16 (autocast) or f16 (autocast with loss scaling). "
      "Weights stay f32.",
      {"f32", "bf16", "f16"});
  visit.choice("train.recompute", o.plan.recompute,
               "Activation checkpointing: none, full (whole blocks), or selective (large and cheap "
               "activations; gpt).",
               {"none", "full", "selective"});
  visit.choice("train.balance", o.balance_by_speed,
               "How a batch is divided over the replicas: even, or by their measured speed.",
               {"even", "speed"});
  visit.choice(
      "train.on_straggler", o.on_straggler,
      "What to do about a rank that the others wait for: warn, rebalance (divide batches by speed "
      "from then on), or replace (ask the launcher for a new process).",
      {"warn", "rebalance", "replace"});
  visit("train.seed", seed, "Seed of initial weights, sample order, augmentation and dropout.",
        at_least(0));
  visit("train.reproducible", reproducible,
        "Give bit-identical results at any number of ranks. Slower.");
  visit("train.micro_shards", shards,
        "Parts of a batch that are summed in a fixed order (train.reproducible): a power of two, "
        "and a multiple of the replicas.",
        between(1, 1024));
  o.plan.seed = static_cast<std::uint64_t>(seed);
  o.device = device;
  o.plan.micro_shards = reproducible ? shards : 0;
}

void evaluation_settings(Options& o, SettingsVisitor& visit) {
  visit("train.eval_every", o.eval_every, "Epochs between evaluations. 0: only at the end.",
        at_least(0));
  visit("train.eval_steps", o.eval_steps, "Steps between evaluations within an epoch. 0: none.",
        at_least(0));
  visit("train.eval_batch", o.eval_batch,
        "Batch size of the evaluation on each replica. 0: a replica's share of a training batch.",
        between(0, kMaxSamples));
  visit("train.checkpoint_every", o.checkpoint_every,
        "Epochs between checkpoints. 0: none by epochs.", at_least(0));
  visit("train.checkpoint_steps", o.checkpoint_steps,
        "Steps between checkpoints. 0: none by steps.", at_least(0));
  visit("train.checkpoint_minutes", o.checkpoint_minutes,
        "Minutes between checkpoints, checked every train.log_every steps. 0: none by time.",
        at_least(0));
  visit("train.keep", o.keep, "Newest checkpoints to keep, at least 2. 0: all.",
        between(0, kMaxInt));
  visit("train.keep_best", o.keep_best,
        "Save a checkpoint after each evaluation that is the best so far, and keep the best one "
        "beside the newest.");
  visit(
      "train.patience", o.patience,
      "End the run after this many evaluations in a row that are not better than the best one. 0: "
      "never.",
      at_least(0));
  visit("train.best_metric", o.best_metric,
        "Metric by which evaluations are compared: loss, accuracy, or another one of the task.");
  visit.choice(
      "train.best_is", o.best_is,
      "Better values of train.best_metric: min (smaller), max (larger), or auto: smaller for "
      "losses, errors, perplexities and bits.",
      {"auto", "min", "max"});
  visit("train.min_improvement", o.min_improvement,
        "Least change of train.best_metric that counts as better.", at_least(0));
  visit("train.checkpoint_async", o.checkpoint_async,
        "Write checkpoints in the background, from a copy of each rank's state in memory.");
}

void fault_settings(Options& o, SettingsVisitor& visit) {
  visit("train.max_not_finite", o.max_not_finite,
        "End the run after this many steps in a row with a loss or gradient that is NaN or "
        "infinite. 0: continue.",
        at_least(0));
  visit("train.skip_not_finite", o.plan.skip_not_finite,
        "Skip a step, on all ranks alike, if a gradient of a rank is NaN or infinite.");
  visit("train.copy_steps", o.copy_steps,
        "Steps between copies of the state to memory, from which training goes on when a rank is "
        "lost (--max-replacements). 0: as many that copies take 1 % of the time.",
        at_least(0));
  visit.choice(
      "train.on_resize", o.on_resize,
      "What happens to the batch when the number of ranks changes: \"keep_global_batch\" (each "
      "rank "
      "takes a larger share, in more passes) or \"scale\" (the share of a rank stays, and the "
      "learning rate is scaled).",
      {"keep_global_batch", "scale"});
  visit("train.compare_steps", o.compare_steps,
        "Steps between comparisons of the weights and optimizer state of replicas, which find "
        "flipped bits and wrong computations. 0: none.",
        at_least(0));
  visit(
      "train.noise_scale", o.plan.measure_noise,
      "Measure the gradient noise scale, the batch size above which larger batches save few steps "
      "(docs/optimizers.md): noise_scale in the metrics. Needs two replicas.");
  visit.choice("train.batch_schedule", o.batch_schedule,
               "Samples of a step: constant (train.batch), or noise: several batches a step as the "
               "gradient "
               "noise scale grows (docs/optimizers.md).",
               {"constant", "noise"});
  visit("train.max_batch", o.max_batch, "Most samples of a step. 0: eight batches.",
        between(0, kMaxSamples), {"train.batch_schedule", {"noise"}});
  visit(
      "train.verify_steps", o.verify_steps,
      "Steps between verifications, in which each replica computes the gradients of another one's "
      "batch again, to find a processor that computes wrongly. 0: none.",
      at_least(0));
  visit("train.log_every", o.log_every,
        "Steps between reductions of the loss over the ranks; signals are checked then, too.",
        at_least(1));
  visit("train.peak_tflops", o.peak_tflops,
        "Peak TFLOP/s of one rank's device at train.precision: metrics then have the MFU, model "
        "FLOPs utilization (gpt). 0: no MFU.",
        at_least(0));
}

void optimizer_settings(Options& o, SettingsVisitor& visit) {
  OptimizerKeys optimizer = keys_of(o.plan.optimizer);
  visit("optimizer.name", optimizer.name,
        "Optimizer: sgd, rmsprop, adagrad, adam, adamw, lion, lars, lamb, adafactor or muon "
        "(docs/optimizers.md).",
        one_of({"sgd", "rmsprop", "adagrad", "adam", "adamw", "lion", "lars", "lamb", "adafactor",
                "muon"}));
  visit("optimizer.lr", optimizer.lr, "Learning rate.", at_least(0));
  visit("optimizer.momentum", optimizer.momentum, "Momentum. The reference of muon has 0.95.",
        between(0, 1), for_optimizers({"sgd", "rmsprop", "lars", "muon"}));
  visit("optimizer.nesterov", optimizer.nesterov, "Nesterov momentum. muon always has it.", {},
        for_optimizers({"sgd", "lars"}));
  visit("optimizer.trust", optimizer.trust,
        "Learning rate of a tensor over the ratio of its norm and its gradient's norm.",
        at_least(0), for_optimizers({"lars"}));
  visit("optimizer.update_clip", optimizer.update_clip,
        "Largest root mean square of a tensor's update.", at_least(0.001),
        for_optimizers({"adafactor"}));
  visit("optimizer.adam_lr", optimizer.adam_lr,
        "Learning rate of AdamW over optimizer.lr, for tensors that are not made orthogonal.",
        at_least(0), for_optimizers({"muon"}));
  visit("optimizer.alpha", optimizer.alpha, "Decay of the squares.", between(0, 1),
        for_optimizers({"rmsprop"}));
  visit("optimizer.betas", optimizer.betas,
        "Decay of the averages. The paper of lion has 0.9 and 0.99, the reference of muon 0.9 "
        "and 0.95.",
        at_least_0_below_1(), for_optimizers({"adam", "adamw", "lion", "lamb", "muon"}));
  visit("optimizer.eps", optimizer.eps, "Term in the denominator. The paper of lamb has 1e-6.",
        at_least(0), for_optimizers({"rmsprop", "adagrad", "adam", "adamw", "lamb", "muon"}));
  visit("optimizer.weight_decay", optimizer.weight_decay,
        "Weight decay (L2 penalty); decoupled for adamw, lion, lamb, adafactor and muon.",
        at_least(0));
  visit("optimizer.l1", optimizer.l1, "L1 penalty.", at_least(0),
        for_optimizers({"sgd", "rmsprop", "adagrad", "adam", "adamw", "lion"}));
  visit("optimizer.decay_vectors", o.plan.decay_vectors,
        "Apply weight decay and L1 to biases and normalization layers, too. lars never does.");
  visit("optimizer.max_grad_norm", optimizer.max_grad_norm,
        "Maximum of the global gradient norm (clipping). 0: no clipping.", at_least(0));
  o.plan.optimizer = optimizer_of(optimizer);
}

void rate_settings(Options& o, SettingsVisitor& visit) {
  visit.choice("schedule.name", o.schedule.shape,
               "Learning-rate schedule: constant, step or cosine.", {"constant", "step", "cosine"});
  visit("schedule.warmup_epochs", o.schedule.warmup, "Epochs of linear warm-up.", at_least(0));
  visit("schedule.period_epochs", o.schedule.period,
        "Epochs between drops (step), or until the minimum (cosine). 0: all epochs.", at_least(0),
        for_schedules({"step", "cosine"}));
  visit("schedule.gamma", o.schedule.gamma, "Factor of the learning rate at each drop.",
        between(0, 1), for_schedules({"step"}));
  visit("schedule.minimum", o.schedule.minimum, "Learning rate at the end.", at_least(0),
        for_schedules({"cosine"}));
  visit("schedule.reference_batch", o.reference_batch,
        "Global batch size that optimizer.lr is meant for; the rate is scaled linearly to the real "
        "one. 0: no scaling.",
        at_least(0));
}

void strategy_settings(strategy::Strategy& o, SettingsVisitor& visit) {
  visit("strategy.name", o.name,
        "How the replicas of dp work together: sync (gradients are averaged at every step), "
        "local_sgd, slow_momentum, diloco, easgd, gossip, downpour, easgd_async or ad_psgd "
        "(docs/strategies.md).",
        one_of(strategies()));
  visit("strategy.period", o.period,
        "Optimizer steps between two exchanges. 0: 16 for local_sgd and slow_momentum, 100 for "
        "diloco, 8 for easgd and easgd_async, else 1.",
        at_least(0), for_strategies(worker_strategies()));
  visit("strategy.sync_steps", o.sync_steps,
        "Steps at the start with an exchange after each one (post-local SGD).", at_least(0),
        for_strategies(worker_strategies()));
  visit("strategy.adapt_steps", o.adapt_steps,
        "Steps between changes of the period, which falls with the loss (AdaComm), or by half "
        "where the loss has not fallen enough. 0: it stays.",
        at_least(0), for_strategies({"local_sgd", "slow_momentum", "easgd", "gossip"}));
  visit("strategy.lr", o.lr,
        "Learning rate of the exchange (slow_momentum, diloco, downpour, and gossip with a codec). "
        "Below 0: 0.7 for diloco, by codec for gossip, else 1.",
        {}, for_strategies({"slow_momentum", "diloco", "downpour", "gossip"}));
  visit("strategy.momentum", o.momentum,
        "Momentum of the exchange. Below 0: 0.5 for slow_momentum, 0.9 for diloco.", {},
        for_strategies({"slow_momentum", "diloco"}));
  visit("strategy.fragments", o.fragments,
        "Fragments of the weights that are exchanged one after the other over the period.",
        between(1, 10000), for_strategies({"diloco"}));
  visit("strategy.beta", o.beta,
        "Share of the way that the center moves to the mean of the workers.", between(0, 1),
        for_strategies({"easgd", "easgd_async"}));
  visit("strategy.graph", o.graph,
        "Who averages with whom: ring, grid, exponential, one_peer_exponential or "
        "random_matching (docs/algorithms.md).",
        {}, for_strategies({"gossip", "ad_psgd"}));
  visit("strategy.staleness", o.staleness,
        "A worker waits until the slowest one is at most so many exchanges behind. Below 0: "
        "nobody waits.",
        {}, for_strategies({"downpour", "easgd_async"}));
  visit("strategy.delay_compensation", o.delay_compensation,
        "Factor of the correction of gradients of older weights, DC-ASGD. 0: none.", at_least(0),
        for_strategies({"downpour"}));
  visit("strategy.backup", o.backup,
        "Backup workers: number of gradients that a step leaves out, the last ones.",
        between(0, kMaxInt), for_strategies({"sync"}));
  visit("strategy.codec", o.codec,
        "Compression of what the workers exchange: none, bf16, int8:64, topk:0.01, … "
        "(docs/compression.md).",
        {},
        for_strategies({"local_sgd", "slow_momentum", "diloco", "easgd", "gossip", "downpour",
                        "easgd_async"}));
}

void mesh_settings(Options& o, SettingsVisitor& visit) {
  MeshKeys mesh = mesh_keys_of(o);
  visit("model.sync_batch_norm", o.plan.sync_batch_norm,
        "Compute batch norm statistics over the batches of all replicas (synchronized batch norm).",
        {}, for_resnets());
  visit(
      "parallel.plan", mesh.plan,
      "manual: the keys as they are set. auto: measure machines and model at the start, and "
      "choose axes, micro-batches, schedule and recomputation. predict: the keys as they are set, "
      "with a prediction of the step (docs/planning.md).",
      one_of({"manual", "auto", "predict"}));
  visit.choice(
      "parallel.weights", o.plan.weights,
      "Placement of weights: shared (one copy for each host), private (one for each rank), or "
      "auto.",
      {"auto", "shared", "private"});
  visit(
      "parallel.dp", mesh.dp,
      "Data parallelism: replicas that divide each batch. 0: all ranks that the other axes leave.",
      between(0, kMaxInt));
  visit("parallel.fsdp", mesh.fsdp,
        "Fully sharded data parallelism: replicas that also divide parameters, gradients and "
        "optimizer state.",
        between(1, kMaxInt));
  visit("parallel.tp", mesh.tp, "Tensor parallelism: ranks that divide each layer.",
        between(1, kMaxInt), for_models({"gpt", "vit", "mixer"}));
  visit("parallel.pp", mesh.pp, "Pipeline parallelism: stages, each with its own blocks.",
        between(1, kMaxInt));
  visit("parallel.cp", mesh.cp, "Context parallelism: ranks that divide each sequence.",
        between(1, kMaxInt), for_models({"gpt"}));
  visit("parallel.ep", mesh.ep, "Expert parallelism: replicas that divide the experts.",
        between(1, kMaxInt), for_models({"gpt"}));
  o.mesh = mesh_of(mesh);
  o.predict_plan = mesh.plan == kPredictPlan;
}

void parallel_settings(Options& o, SettingsVisitor& visit) {
  std::string schedule = schedule::pipeline::to_string(o.plan.schedule);
  double bucket_mb = static_cast<double>(o.plan.data_parallel.bucket_bytes) / (1 << 20);
  visit.choice(
      "parallel.context", o.plan.context,
      "Attention over cp: ring (keys and values travel around the ranks) or heads (each rank "
      "takes some heads).",
      {"ring", "heads"}, for_models({"gpt"}));
  visit("parallel.zero_stage", o.plan.zero_stage,
        "ZeRO stage of fsdp: 1 shards the optimizer state, 2 gradients too, 3 parameters too.",
        between(1, 3));
  visit("parallel.schedule", schedule, "Pipeline schedule (docs/pipelines.md).",
        one_of(schedules()));
  visit("parallel.micro_batches", o.plan.micro_batches,
        "Micro-batches of a replica's batch. 0: 4 for each stage of pp, else 1.",
        between(0, kMaxInt));
  visit("parallel.cuts", o.plan.cuts,
        "First block of every pipeline stage except stage 0. Empty: chosen by measured times.",
        between(1, kMaxInt));
  visit(
      "parallel.codec", o.plan.codec,
      "Gradient compression between replicas: none, bf16, int8:64, topk:0.01, powersgd:4, auto, … "
      "(docs/compression.md).");
  visit.choice(
      "parallel.reduce", o.plan.adasum,
      "Combination of gradients over dp: average, or adasum, which adds what differs and averages "
      "what is alike (docs/optimizers.md).",
      {"average", "adasum"});
  visit("parallel.bucket_mb", bucket_mb,
        "Megabytes of a gradient bucket between hosts (dp). 0: 25, tuned where this changes no bit "
        "of the result.",
        between(0, 4096));
  visit("parallel.overlap_forward", o.plan.data_parallel.overlap_forward,
        "Overlap the gradient exchange between hosts with the next forward (dp).");
  o.plan.schedule = schedule::pipeline::parse_algorithm(schedule);
  o.plan.data_parallel.bucket_bytes = static_cast<std::size_t>(bucket_mb * (1 << 20));
}

}  // namespace

void check_device_key(const Config& config) {
  try {
    static_cast<void>(comm::DeviceSpec(config.get_string("train.device")));
  } catch (const Error& error) {
    throw Error(Errc::kBadConfig,
                "train.device (" + config.origin("train.device") + "): " + error.message());
  }
}

void each_setting(Options& options, SettingsVisitor& visit) {
  batch_settings(options, visit);
  evaluation_settings(options, visit);
  fault_settings(options, visit);
  optimizer_settings(options, visit);
  rate_settings(options, visit);
  strategy_settings(options.strategy, visit);
  mesh_settings(options, visit);
  parallel_settings(options, visit);
  visit("run.dir", options.dir, "Folder that contains the run folders.");
  visit("run.name", options.name, "Name of the run folder. Empty: date and recipe.");
}

}  // namespace weft::train::internal
