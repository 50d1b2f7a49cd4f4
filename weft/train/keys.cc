// Every key of a recipe, with its default, limits and help.
#include "weft/schedule/pipeline/pipeline.h"
#include "weft/train/options.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace {

constexpr Limits at_least(double min) { return {.min = min, .max = {}, .choices = {}}; }
constexpr Limits between(double min, double max) { return {.min = min, .max = max, .choices = {}}; }
Limits one_of(std::vector<std::string> choices) {
  return {.min = {}, .max = {}, .choices = std::move(choices)};
}

std::int64_t whole(std::int64_t value) { return value; }

// Sums of two such numbers fit into 64 bits.
constexpr double kMostSamples = 1e12;
// Such a number fits into an int.
constexpr double kMostInt = 1e9;
// Products of two such sizes, and a few more, fit into 64 bits.
constexpr double kMostSize = 1e8;

std::vector<std::string> schedules() {
  std::vector<std::string> names;
  for (const auto algorithm : schedule::pipeline::algorithms()) {
    if (algorithm != schedule::pipeline::Algorithm::kForwardOnly)
      names.emplace_back(to_string(algorithm));
  }
  return names;
}

Schema data_keys() {
  return {
      {"model.name", "cnn",
       "Model: cnn, mlp, resnet18, 34, 50, 101, 152, vit or mixer for images; gpt or lstm for a "
       "text."},
      {"model.family", "gpt2",
       "Kind of gpt: gpt2 (LayerNorm, learned positions, GELU) or llama (RMSNorm, rotary "
       "positions, SwiGLU).",
       one_of({"gpt2", "llama"})},
      {"model.layers", whole(4), "Number of blocks (gpt, vit, mixer) or layers (lstm).",
       between(1, kMostSize)},
      {"model.width", whole(128), "Width of the hidden representation (gpt, vit, mixer, lstm).",
       between(1, kMostSize)},
      {"model.heads", whole(4), "Attention heads (gpt, vit).", between(1, kMostSize)},
      {"model.kv_heads", whole(0), "Key and value heads (gpt). 0: as many as model.heads.",
       between(0, kMostSize)},
      {"model.sequence", whole(128),
       "Tokens of a training sample (gpt, lstm), and the context length of a gpt.",
       between(2, kMostSize)},
      {"model.experts", whole(0),
       "Experts that replace the MLP of each block (gpt). 0: no experts.", between(0, kMostSize)},
      {"model.experts_top_k", whole(2), "Experts that each token is routed to (gpt).",
       between(1, kMostSize)},
      {"model.experts_capacity", 0.0,
       "Capacity factor of an expert: tokens above this times the even share are dropped (gpt). 0: "
       "no limit.",
       at_least(0)},
      {"model.experts_balance", 0.01, "Weight of the load-balancing loss of experts (gpt).",
       at_least(0)},
      {"model.tied", true, "Tie the weights of the token embedding and the output layer (lstm)."},
      {"model.dropout", 0.0, "Dropout probability (gpt, lstm, vit).", between(0, 0.99)},
      {"model.hidden", std::vector<std::int64_t>{256, 128}, "Widths of the hidden layers (mlp).",
       between(1, kMostSize)},
      {"model.stem", "3x3", "First layer of a resnet: 3x3 for small images, 7x7 for large ones.",
       one_of({"3x3", "7x7"})},
      {"model.patch", whole(4),
       "Side of a patch in pixels; must divide both sides of the image (vit, mixer).",
       between(1, kMostSize)},
      {"model.pool", "token",
       "Input of the classifier: a class token, or the mean over the patches (vit).",
       one_of({"token", "mean"})},
      {"model.from", "",
       "Folder with a model in Hugging Face's format to start from (gpt): config.json, safetensors "
       "files and tokenizer.json. It gives the sizes of the model. Empty: random weights."},
      {"model.config", "", "Contents of the config.json of model.from; set by weft train."},
      {"data.name", "fashion-mnist",
       "Data set: fashion-mnist, shapes (generated, needs no files), or text.",
       one_of({"fashion-mnist", "shapes", "text"})},
      {"data.file", "", "Text file, or a folder of text files and folders."},
      {"data.tokenizer", "bytes",
       "Tokenizer: bytes, bpe:4096 (trained on the text), or a tokenizer.json."},
      {"data.validation", 0.1, "Share of the text, at its end, that is held out for evaluation.",
       between(0.001, 0.9)},
      {"data.pack_documents", false,
       "Pack whole documents into samples, without attention between documents (gpt). false: cut "
       "the text into windows."},
      {"data.dir", "",
       "Folder of fashion-mnist's four IDX files; empty: where Debian's dataset-fashion-mnist puts "
       "them."},
      {"data.seed", whole(1), "Seed of the generated data set (shapes).", at_least(0)},
      {"data.crop_padding", whole(0),
       "Pixels of padding before a random crop of training images. 0: no crop.", between(0, 127)},
      {"data.flip", false, "Flip training images horizontally at random."},
      {"train.loss", "cross_entropy", "Loss function (images).",
       one_of({"cross_entropy", "nll", "mse"})},
      {"train.label_smoothing", 0.0, "Label smoothing of cross_entropy (images).",
       between(0, 0.99)}};
}

Schema train_keys() {
  return {
      {"data.prefetch", whole(2), "Batches that a background thread prepares ahead. 0: none.",
       between(0, 64)},
      {"train.epochs", whole(5), "Passes over the training data.", at_least(0)},
      {"train.batch", whole(128), "Global batch size: samples of a step over all ranks.",
       between(1, kMostSamples)},
      {"train.batch_per_rank", whole(0),
       "Samples of a step for each replica. 0: train.batch divided over the replicas.",
       between(0, kMostSamples)},
      {"train.max_steps", whole(0), "Stop after this many steps. 0: after train.epochs.",
       at_least(0)},
      {"train.device", "cpu",
       "Where a rank computes: cpu; cuda (the device with its number on the host); cuda:0, … (one "
       "device for all ranks); or auto (a device of its own where there is one, else the CPU). "
       "Devices are supported with dp alone (docs/gpus.md)."},
      {"train.precision", "f32",
       "Precision of forward and loss: f32, bf16 (autocast) or f16 (autocast with loss scaling). "
       "Weights stay f32.",
       one_of({"f32", "bf16", "f16"})},
      {"train.recompute", "none",
       "Activation checkpointing: none, full (whole blocks), or selective (large and cheap "
       "activations; gpt).",
       one_of({"none", "selective", "full"})},
      {"train.balance", "even",
       "How a batch is divided over the replicas: even, or by their measured speed.",
       one_of({"even", "speed"})},
      {"train.on_straggler", "warn",
       "What to do about a rank that the others wait for: warn, rebalance (divide batches by speed "
       "from then on), or replace (ask the launcher for a new process).",
       one_of({"warn", "rebalance", "replace"})},
      {"train.seed", whole(1), "Seed of initial weights, sample order, augmentation and dropout.",
       at_least(0)},
      {"train.reproducible", false, "Give bit-identical results at any number of ranks. Slower."},
      {"train.micro_shards", whole(4),
       "Parts of a batch that are summed in a fixed order (train.reproducible): a power of two, "
       "and a multiple of the replicas.",
       between(1, 1024)},
      {"train.eval_every", whole(1), "Epochs between evaluations. 0: only at the end.",
       at_least(0)},
      {"train.eval_steps", whole(0), "Steps between evaluations within an epoch. 0: none.",
       at_least(0)},
      {"train.eval_batch", whole(0),
       "Batch size of the evaluation on each replica. 0: a replica's share of a training batch.",
       between(0, kMostSamples)},
      {"train.checkpoint_every", whole(1), "Epochs between checkpoints. 0: none by epochs.",
       at_least(0)},
      {"train.checkpoint_steps", whole(0), "Steps between checkpoints. 0: none by steps.",
       at_least(0)},
      {"train.checkpoint_minutes", 10.0,
       "Minutes between checkpoints, checked every train.log_every steps. 0: none by time.",
       at_least(0)},
      {"train.keep", whole(3), "Newest checkpoints to keep, at least 2. 0: all.",
       between(0, kMostInt)},
      {"train.keep_best", false,
       "Save a checkpoint after each evaluation that is the best so far, and keep the best one "
       "beside the newest."},
      {"train.patience", whole(0),
       "End the run after this many evaluations in a row that are not better than the best one. 0: "
       "never.",
       at_least(0)},
      {"train.best_metric", "loss",
       "Metric by which evaluations are compared: loss, accuracy, or another one of the task."},
      {"train.best_is", "auto",
       "Better values of train.best_metric: min (smaller), max (larger), or auto: smaller for "
       "losses, errors, perplexities and bits.",
       one_of({"auto", "min", "max"})},
      {"train.min_improvement", 0.0, "Least change of train.best_metric that counts as better.",
       at_least(0)},
      {"train.checkpoint_async", true,
       "Write checkpoints in the background, from a copy of each rank's state in memory."},
      {"train.max_not_finite", whole(3),
       "End the run after this many steps in a row with a loss or gradient that is NaN or "
       "infinite. 0: continue.",
       at_least(0)},
      {"train.skip_not_finite", true,
       "Skip a step, on all ranks alike, if a gradient of a rank is NaN or infinite."},
      {"train.copy_steps", whole(0),
       "Steps between copies of the state to memory, from which training goes on when a rank is "
       "lost (--max-replacements). 0: as many that copies take 1 % of the time.",
       at_least(0)},
      {"train.on_resize", "keep_global_batch",
       "What happens to the batch when the number of ranks changes: \"keep_global_batch\" (each "
       "rank "
       "takes a larger share, in more passes) or \"scale\" (the share of a rank stays, and the "
       "learning rate is scaled).",
       one_of({"keep_global_batch", "scale"})},
      {"train.compare_steps", whole(100),
       "Steps between comparisons of the weights and optimizer state of replicas, which find "
       "flipped bits and wrong computations. 0: none.",
       at_least(0)},
      {"train.noise_scale", false,
       "Measure the gradient noise scale, the batch size above which larger batches save few steps "
       "(docs/optimizers.md): noise_scale in the metrics. Needs two replicas."},
      {"train.batch_schedule", "constant",
       "Samples of a step: constant (train.batch), or noise: several batches a step as the "
       "gradient "
       "noise scale grows (docs/optimizers.md).",
       one_of({"constant", "noise"})},
      {"train.max_batch", whole(0),
       "Most samples of a step with train.batch_schedule = \"noise\". 0: eight batches.",
       between(0, kMostSamples)},
      {"train.verify_steps", whole(0),
       "Steps between verifications, in which each replica computes the gradients of another one's "
       "batch again, to find a processor that computes wrongly. 0: none.",
       at_least(0)},
      {"train.log_every", whole(10),
       "Steps between reductions of the loss over the ranks; signals are checked then, too.",
       at_least(1)},
      {"train.peak_tflops", 0.0,
       "Peak TFLOP/s of one rank's device at train.precision: metrics then have the MFU, model "
       "FLOPs utilization (gpt). 0: no MFU.",
       at_least(0)}};
}

Schema optimizer_keys() {
  return {
      {"optimizer.name", "sgd",
       "Optimizer: sgd, rmsprop, adagrad, adam, adamw, lion, lars, lamb, adafactor or muon "
       "(docs/optimizers.md).",
       one_of({"sgd", "rmsprop", "adagrad", "adam", "adamw", "lion", "lars", "lamb", "adafactor",
               "muon"})},
      {"optimizer.lr", 0.1, "Learning rate.", at_least(0)},
      {"optimizer.momentum", 0.9,
       "Momentum (sgd, rmsprop, lars, muon). The reference of muon has 0.95.", between(0, 1)},
      {"optimizer.nesterov", false, "Nesterov momentum (sgd, lars). muon always has it."},
      {"optimizer.trust", 1e-3,
       "Learning rate of a tensor over the ratio of its norm and its gradient's norm (lars).",
       at_least(0)},
      {"optimizer.update_clip", 1.0, "Largest root mean square of a tensor's update (adafactor).",
       at_least(0.001)},
      {"optimizer.adam_lr", 0.015,
       "Learning rate of AdamW over optimizer.lr, for tensors that are not made orthogonal (muon).",
       at_least(0)},
      {"optimizer.alpha", 0.99, "Decay of the squares (rmsprop).", between(0, 1)},
      {"optimizer.betas", std::vector<double>{0.9, 0.999},
       "Decay of the averages (adam, adamw, lion, lamb, muon). The paper of lion has 0.9 and 0.99, "
       "the reference of muon 0.9 and 0.95.",
       between(0, 1)},
      {"optimizer.eps", 1e-8,
       "Term in the denominator (rmsprop, adagrad, adam, adamw, lamb, muon). The paper of lamb has "
       "1e-6.",
       at_least(0)},
      {"optimizer.weight_decay", 0.0,
       "Weight decay (L2 penalty); decoupled for adamw, lion, lamb, adafactor and muon.",
       at_least(0)},
      {"optimizer.l1", 0.0, "L1 penalty (sgd, rmsprop, adagrad, adam, adamw, lion).", at_least(0)},
      {"optimizer.decay_vectors", true,
       "Apply weight decay and L1 to biases and normalization layers, too."},
      {"optimizer.max_grad_norm", 0.0,
       "Maximum of the global gradient norm (clipping). 0: no clipping.", at_least(0)},
      {"schedule.name", "cosine", "Learning-rate schedule: constant, step or cosine.",
       one_of({"constant", "step", "cosine"})},
      {"schedule.warmup_epochs", 0.0, "Epochs of linear warm-up.", at_least(0)},
      {"schedule.period_epochs", 0.0,
       "Epochs between drops (step), or until the minimum (cosine). 0: all epochs.", at_least(0)},
      {"schedule.gamma", 0.1, "Factor of the learning rate at each drop (step).", between(0, 1)},
      {"schedule.minimum", 0.0, "Learning rate at the end (cosine).", at_least(0)},
      {"schedule.reference_batch", whole(0),
       "Global batch size that optimizer.lr is meant for; the rate is scaled linearly to the real "
       "one. 0: no scaling.",
       at_least(0)}};
}

std::vector<std::string> strategies() {
  return {strategy::names().begin(), strategy::names().end()};
}

Schema strategy_keys() {
  return {
      {"strategy.name", "sync",
       "How the replicas of dp work together: sync (gradients are averaged at every step), "
       "local_sgd, slow_momentum, diloco, easgd, gossip, downpour, easgd_async or ad_psgd "
       "(docs/strategies.md).",
       one_of(strategies())},
      {"strategy.period", whole(0),
       "Optimizer steps between two exchanges. 0: 16 for local_sgd and slow_momentum, 100 for "
       "diloco, 8 for easgd and easgd_async, else 1.",
       at_least(0)},
      {"strategy.sync_steps", whole(0),
       "Steps at the start with an exchange after each one (post-local SGD).", at_least(0)},
      {"strategy.adapt_steps", whole(0),
       "Steps between changes of the period, which falls with the loss (AdaComm). 0: it stays.",
       at_least(0)},
      {"strategy.lr", -1.0,
       "Learning rate of the exchange (slow_momentum, diloco, downpour, and gossip with a codec). "
       "Below 0: 0.7 for diloco, by codec for gossip, else 1."},
      {"strategy.momentum", -1.0,
       "Momentum of the exchange (slow_momentum, diloco). Below 0: 0.5 for slow_momentum, 0.9 for "
       "diloco."},
      {"strategy.fragments", whole(1),
       "Fragments of the weights that are exchanged one after the other over the period (diloco).",
       between(1, 10000)},
      {"strategy.beta", 0.9,
       "Share of the way that the center moves to the mean of the workers (easgd, easgd_async).",
       between(0, 1)},
      {"strategy.graph", "exponential",
       "Who averages with whom (gossip, ad_psgd): ring, grid, exponential, one_peer_exponential or "
       "random_matching (docs/algorithms.md)."},
      {"strategy.staleness", whole(-1),
       "A worker waits until the slowest one is at most so many exchanges behind (downpour, "
       "easgd_async). Below 0: nobody waits."},
      {"strategy.delay_compensation", 0.0,
       "Factor of the correction of gradients of older weights, DC-ASGD (downpour). 0: none.",
       at_least(0)},
      {"strategy.backup", whole(0),
       "Backup workers (sync): number of gradients that a step leaves out, the last ones.",
       between(0, kMostInt)},
      {"strategy.codec", "none",
       "Compression of what the workers exchange: none, bf16, int8:64, topk:0.01, … "
       "(docs/compression.md)"}};
}

Schema run_keys() {
  return {
      {"model.sync_batch_norm", false,
       "Compute batch norm statistics over the batches of all replicas (synchronized batch norm)."},
      {"parallel.plan", "manual",
       "manual: the keys as they are set. auto: measure machines and model at the start, and "
       "choose axes, micro-batches, schedule and recomputation. predict: the keys as they are set, "
       "with a prediction of the step (docs/planning.md).",
       one_of({"manual", "auto", "predict"})},
      {"parallel.weights", "auto",
       "Placement of weights: shared (one copy for each host), private (one for each rank), or "
       "auto.",
       one_of({"auto", "shared", "private"})},
      {"parallel.dp", whole(0),
       "Data parallelism: replicas that divide each batch. 0: all ranks that the other axes leave.",
       between(0, kMostInt)},
      {"parallel.fsdp", whole(1),
       "Fully sharded data parallelism: replicas that also divide parameters, gradients and "
       "optimizer state.",
       between(1, kMostInt)},
      {"parallel.tp", whole(1),
       "Tensor parallelism: ranks that divide each layer (gpt, vit, mixer).", between(1, kMostInt)},
      {"parallel.pp", whole(1), "Pipeline parallelism: stages, each with its own blocks.",
       between(1, kMostInt)},
      {"parallel.cp", whole(1), "Context parallelism: ranks that divide each sequence (gpt).",
       between(1, kMostInt)},
      {"parallel.ep", whole(1), "Expert parallelism: replicas that divide the experts (gpt).",
       between(1, kMostInt)},
      {"parallel.context", "ring",
       "Attention over cp: ring (keys and values travel around the ranks) or heads (each rank "
       "takes some heads).",
       one_of({"ring", "heads"})},
      {"parallel.zero_stage", whole(3),
       "ZeRO stage of fsdp: 1 shards the optimizer state, 2 gradients too, 3 parameters too.",
       between(1, 3)},
      {"parallel.schedule", "1f1b", "Pipeline schedule (docs/pipelines.md).", one_of(schedules())},
      {"parallel.micro_batches", whole(0),
       "Micro-batches of a replica's batch. 0: 4 for each stage of pp, else 1.",
       between(0, kMostInt)},
      {"parallel.cuts", std::vector<std::int64_t>{},
       "First block of every pipeline stage except stage 0. Empty: chosen by measured times.",
       between(1, kMostInt)},
      {"parallel.codec", "none",
       "Gradient compression between replicas: none, bf16, int8:64, topk:0.01, powersgd:4, auto, … "
       "(docs/compression.md)"},
      {"parallel.reduce", "average",
       "Combination of gradients over dp: average, or adasum, which adds what differs and averages "
       "what is alike (docs/optimizers.md).",
       one_of({"average", "adasum"})},
      {"parallel.bucket_mb", 0.0,
       "Megabytes of a gradient bucket between hosts (dp). 0: 25, tuned where this changes no bit "
       "of the result.",
       between(0, 4096)},
      {"parallel.overlap_forward", true,
       "Overlap the gradient exchange between hosts with the next forward (dp)."},
      {"comm.transport", "auto",
       "Transport: shm (shared memory), tcp, mpi (under mpirun), nccl (for train.device = cuda), "
       "or "
       "auto.",
       one_of({"auto", "shm", "tcp", "mpi", "nccl"})},
      {"comm.timeout_s", 300.0, "Seconds to wait for a peer before an operation fails.",
       between(0.1, 86400)},
      {"comm.interface", "",
       "Address, network (10.0.0.0/8) or interface for TCP. Empty: found automatically."},
      {"run.dir", "runs", "Folder that contains the run folders."},
      {"run.name", "", "Name of the run folder. Empty: date and recipe."},
      {"run.recipe", "", "Recipe that the run was started from; set by weft train."}};
}

}  // namespace

Schema recipe_schema() { return Schema().add(data_keys()).add(options_schema()); }

Schema options_schema() {
  return Schema().add(train_keys()).add(optimizer_keys()).add(strategy_keys()).add(run_keys());
}

}  // namespace weft::train
