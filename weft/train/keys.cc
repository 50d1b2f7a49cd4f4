// Every key of a recipe, with its default, limits and help.
#include "weft/schedule/pipeline/pipeline.h"
#include "weft/train/options.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace {

constexpr Limits at_least(double min) { return {.min = min, .max = {}, .choices = {}}; }
constexpr Limits between(double min, double max) { return {.min = min, .max = max, .choices = {}}; }
Limits one_of(std::vector<std::string> choices) { return {.min = {}, .max = {}, .choices = std::move(choices)}; }

std::int64_t whole(std::int64_t value) { return value; }

std::vector<std::string> schedules() {
  std::vector<std::string> names;
  for (const auto algorithm : schedule::pipeline::algorithms()) {
    if (algorithm != schedule::pipeline::Algorithm::kForwardOnly) names.emplace_back(to_string(algorithm));
  }
  return names;
}

Schema data_keys() {
  return {
      {"model.name", "cnn", "Model: cnn, mlp, resnet18, 34, 50, 101, 152, vit or mixer for images; gpt or lstm for a text."},
      {"model.family", "gpt2", "Kind of gpt: gpt2 (LayerNorm, learned positions, GELU) or llama (RMSNorm, rotary positions, SwiGLU).",
       one_of({"gpt2", "llama"})},
      {"model.layers", whole(4), "Number of blocks (gpt, vit, mixer) or layers (lstm).", at_least(1)},
      {"model.width", whole(128), "Features of a token or patch (gpt, vit, mixer, lstm); of a lstm's layers too.", at_least(1)},
      {"model.heads", whole(4), "Heads of attention (gpt, vit).", at_least(1)},
      {"model.kv_heads", whole(0), "Heads of keys and values (gpt); 0: as many as model.heads.", at_least(0)},
      {"model.sequence", whole(128), "Tokens of a training sample (gpt, lstm), and all that a gpt sees at a time.", at_least(2)},
      {"model.experts", whole(0), "Experts in the place of each block's MLP (gpt); 0: none.", at_least(0)},
      {"model.experts_top_k", whole(2), "Experts of a token (gpt).", at_least(1)},
      {"model.experts_capacity", 0.0, "Most tokens of an expert, over its even share; more are dropped (gpt). 0: no limit.", at_least(0)},
      {"model.experts_balance", 0.01, "Weight of the loss that spreads tokens evenly over experts (gpt).", at_least(0)},
      {"model.tied", true, "The same weights for tokens at the input and the output (lstm)."},
      {"model.dropout", 0.0, "Probability of dropout (gpt, lstm, vit).", between(0, 0.99)},
      {"model.hidden", std::vector<std::int64_t>{256, 128}, "Widths between input and output (mlp).", at_least(1)},
      {"model.stem", "3x3", "First layers of a resnet: 3x3 for small images, 7x7 for large ones.", one_of({"3x3", "7x7"})},
      {"model.patch", whole(4), "Side of a patch, which divides the image's (vit, mixer).", at_least(1)},
      {"model.pool", "token", "What is classified: a class token, or the mean over the patches (vit).", one_of({"token", "mean"})},
      {"data.name", "fashion-mnist", "Data: fashion-mnist, shapes (drawn here, needs no files), or text.",
       one_of({"fashion-mnist", "shapes", "text"})},
      {"data.file", "", "File of the text, or a folder of files."},
      {"data.tokenizer", "bytes", "Tokens of the text: bytes, bpe:4096 (learned from the text), or a tokenizer.json."},
      {"data.validation", 0.1, "Part at the text's end that is held out.", between(0.001, 0.9)},
      {"data.pack_documents", false, "Pack whole documents into rows; no token sees another document (gpt). false: windows of the stream."},
      {"data.dir", "", "Folder of fashion-mnist's four IDX files; empty: where Debian's dataset-fashion-mnist puts them."},
      {"data.seed", whole(1), "Seed of the generated data set (shapes).", at_least(0)},
      {"data.crop_padding", whole(0), "Pixels of padding before a random crop of images; 0: no crop.", between(0, 127)},
      {"data.flip", false, "Mirror images at random."},
      {"train.loss", "cross_entropy", "Loss of images.", one_of({"cross_entropy", "nll", "mse"})},
      {"train.label_smoothing", 0.0, "Label smoothing of images' cross_entropy.", between(0, 0.99)}};
}

Schema train_keys() {
  return {
      {"data.prefetch", whole(2), "Batches made ahead by a thread; 0: none.", between(0, 64)},
      {"train.epochs", whole(5), "Passes over the data.", at_least(0)},
      {"train.batch", whole(128), "Samples of a step, over all ranks.", at_least(1)},
      {"train.batch_per_rank", whole(0), "Samples of a step and replica; 0: train.batch divided over the replicas.", at_least(0)},
      {"train.max_steps", whole(0), "Stop after so many steps; 0: after the epochs.", at_least(0)},
      {"train.precision", "f32", "Type of forward and loss: f32, or bf16 or f16 (with a scaled loss) by autocast; weights stay f32.",
       one_of({"f32", "bf16", "f16"})},
      {"train.recompute", "none", "Activation checkpointing: none, whole blocks (full), or what is large and cheap (selective, gpt).",
       one_of({"none", "selective", "full"})},
      {"train.balance", "even", "Shares of a batch: even, or by the measured speed of each replica.", one_of({"even", "speed"})},
      {"train.seed", whole(1), "Seed of weights, order of samples, augmentation and dropout.", at_least(0)},
      {"train.reproducible", false, "Give the same bits at any number of ranks; slower."},
      {"train.micro_shards", whole(4), "Parts of a reproducible batch, a power of two and a multiple of the replicas.", between(1, 1024)},
      {"train.eval_every", whole(1), "Epochs between evaluations; 0: only at the end.", at_least(0)},
      {"train.eval_steps", whole(0), "Steps between evaluations within an epoch; 0: none.", at_least(0)},
      {"train.eval_batch", whole(0), "Samples of a block of the evaluation; 0: a replica's share of a batch.", at_least(0)},
      {"train.checkpoint_every", whole(1), "Epochs between checkpoints; 0: none by epochs.", at_least(0)},
      {"train.checkpoint_steps", whole(0), "Steps between checkpoints; 0: none by steps.", at_least(0)},
      {"train.checkpoint_minutes", 10.0, "Minutes between checkpoints, checked every train.log_every steps; 0: none by time.", at_least(0)},
      {"train.keep", whole(3), "Checkpoints kept; 0: all.", at_least(0)},
      {"train.checkpoint_async", true, "Write checkpoints in the background; costs a copy of each rank's state in memory."},
      {"train.log_every", whole(10), "Steps between reductions of the loss over ranks and looks at signals.", at_least(1)}};
}

Schema optimizer_keys() {
  return {
      {"optimizer.name", "sgd", "Optimizer: sgd, rmsprop, adagrad, adam or adamw.", one_of({"sgd", "rmsprop", "adagrad", "adam", "adamw"})},
      {"optimizer.lr", 0.1, "Learning rate.", at_least(0)},
      {"optimizer.momentum", 0.9, "Momentum (sgd, rmsprop).", between(0, 1)},
      {"optimizer.nesterov", false, "Nesterov momentum (sgd)."},
      {"optimizer.alpha", 0.99, "Decay of the squares (rmsprop).", between(0, 1)},
      {"optimizer.betas", std::vector<double>{0.9, 0.999}, "Decay of the averages (adam, adamw).", between(0, 1)},
      {"optimizer.eps", 1e-8, "Term in the denominator (rmsprop, adagrad, adam, adamw).", at_least(0)},
      {"optimizer.weight_decay", 0.0, "L2 penalty; decoupled for adamw.", at_least(0)},
      {"optimizer.l1", 0.0, "L1 penalty.", at_least(0)},
      {"optimizer.decay_vectors", true, "Weight decay and L1 of biases and normalization too."},
      {"optimizer.max_grad_norm", 0.0, "Clip the global gradient norm to this; 0: no clipping.", at_least(0)},
      {"schedule.name", "cosine", "Learning-rate schedule: constant, step or cosine.", one_of({"constant", "step", "cosine"})},
      {"schedule.warmup_epochs", 0.0, "Epochs of linear warm-up.", at_least(0)},
      {"schedule.period_epochs", 0.0, "Epochs between drops (step), or to the minimum (cosine); 0: all epochs.", at_least(0)},
      {"schedule.gamma", 0.1, "Factor of a drop (step).", between(0, 1)},
      {"schedule.minimum", 0.0, "Learning rate at the end (cosine).", at_least(0)},
      {"schedule.reference_batch", whole(0), "Scale optimizer.lr linearly from this global batch; 0: take it as it is.", at_least(0)}};
}

Schema run_keys() {
  return {{"model.sync_batch_norm", false, "Take the statistics of batch norms over all replicas' batches together."},
          {"parallel.weights", "auto", "Where weights are: shared (once a host), private (a copy a rank), or auto.",
           one_of({"auto", "shared", "private"})},
          {"parallel.dp", whole(0), "Replicas, which share each batch; 0: what the other axes leave.", at_least(0)},
          {"parallel.fsdp", whole(1), "Replicas that share optimizer state, gradients and parameters too.", at_least(1)},
          {"parallel.tp", whole(1), "Ranks that share each layer (gpt, vit, mixer).", at_least(1)},
          {"parallel.pp", whole(1), "Ranks in a pipeline, each with blocks of its own.", at_least(1)},
          {"parallel.cp", whole(1), "Ranks that share each sequence (gpt).", at_least(1)},
          {"parallel.ep", whole(1), "Replicas that share the experts (gpt).", at_least(1)},
          {"parallel.context", "ring", "Attention over cp: keys and values go round the ranks (ring), or each rank takes heads.",
           one_of({"ring", "heads"})},
          {"parallel.zero_stage", whole(3), "What fsdp shares: 1 optimizer state, 2 gradients too, 3 parameters too.", between(1, 3)},
          {"parallel.schedule", "1f1b", "Pipeline schedule (docs/pipelines.md).", one_of(schedules())},
          {"parallel.micro_batches", whole(0), "Parts of a replica's batch, one after the other; 0: 4 for each rank of pp, else 1.",
           at_least(0)},
          {"parallel.cuts", std::vector<std::int64_t>{}, "First block of each pipeline stage but the first; empty: by measured times.",
           at_least(1)},
          {"parallel.codec", "none", "Compression of gradients between replicas: none, bf16, int8:64, topk:0.01, powersgd:4, auto, …"},
          {"parallel.bucket_mb", 0.0, "Size of a bucket of gradients between hosts (dp); 0: 25, tuned where no bit of the result changes.",
           between(0, 4096)},
          {"parallel.overlap_forward", true, "Let gradients between hosts travel into the next forward (dp)."},
          {"comm.transport", "auto", "Transport: shm (shared memory), tcp, mpi (under mpirun), or auto.",
           one_of({"auto", "shm", "tcp", "mpi"})},
          {"comm.timeout_s", 300.0, "Seconds to wait for a peer.", between(0.1, 86400)},
          {"comm.interface", "", "Address, network (10.0.0.0/8) or interface that TCP listens on; empty: found."},
          {"run.dir", "runs", "Folder of run folders."},
          {"run.name", "", "Name of the run folder; empty: date and recipe."}};
}

}  // namespace

Schema recipe_schema() { return Schema().add(data_keys()).add(options_schema()); }

Schema options_schema() { return Schema().add(train_keys()).add(optimizer_keys()).add(run_keys()); }

}  // namespace weft::train
