#include "weft/train/recipe.h"

#include <algorithm>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/compress/spec.h"
#include "weft/optim/learning_rate.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;

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
      {"model.name", "cnn", "cnn, mlp, resnet18, 34, 50, 101, 152, vit or mixer; gpt or lstm for a text"},
      {"model.family", "gpt2", "gpt: gpt2 (LayerNorm, learned positions, GELU), or llama (RMSNorm, rotary positions, SwiGLU)",
       one_of({"gpt2", "llama"})},
      {"model.layers", whole(4), "gpt, vit, mixer: blocks; lstm: layers", at_least(1)},
      {"model.width", whole(128), "gpt, vit, mixer: features of a token or patch; lstm: of a token, and units of a layer", at_least(1)},
      {"model.heads", whole(4), "gpt, vit: of attention", at_least(1)},
      {"model.kv_heads", whole(0), "gpt: keys and values that heads share; 0: one a head", at_least(0)},
      {"model.sequence", whole(128), "text: tokens that it sees at a time; lstm: while training", at_least(2)},
      {"model.experts", whole(0), "gpt: MLPs in the place of each block's one, of which a token goes to a few; 0: none", at_least(0)},
      {"model.experts_top_k", whole(2), "experts of a token", at_least(1)},
      {"model.experts_capacity", 0.0, "an expert takes so many times its even share of tokens, and drops the rest; 0: all", at_least(0)},
      {"model.experts_balance", 0.01, "weight of the loss that spreads tokens evenly over experts", at_least(0)},
      {"model.tied", true, "lstm: tokens have the same weights where they come in and where they go out"},
      {"model.dropout", 0.0, "gpt, lstm, vit", between(0, 0.99)},
      {"model.hidden", std::vector<std::int64_t>{256, 128}, "mlp: widths between input and output", at_least(1)},
      {"model.stem", "3x3", "resnets: 3x3 for small images, 7x7 for large ones", one_of({"3x3", "7x7"})},
      {"model.patch", whole(4), "vit, mixer: side of a patch, which divides the image's", at_least(1)},
      {"model.pool", "token", "vit: a class token is classified, or the mean over the patches", one_of({"token", "mean"})},
      {"model.sync_batch_norm", false, "batch norms over all ranks' batches together"},
      {"data.name", "fashion-mnist", "fashion-mnist, shapes (drawn here, needs no files), or text",
       one_of({"fashion-mnist", "shapes", "text"})},
      {"data.file", "", "text: a file, or a folder of files"},
      {"data.tokenizer", "bytes", "text: bytes, bpe:4096 (learned from the text), or a tokenizer.json"},
      {"data.validation", 0.1, "text: the part at its end that is held out", between(0.001, 0.9)},
      {"data.dir", "", "folder of the four IDX files; empty: where Debian's dataset-fashion-mnist puts them"},
      {"data.seed", whole(1), "of the generated data set", at_least(0)},
      {"data.crop_padding", whole(0), "pixels of padding before a random crop; 0: no crop", between(0, 127)},
      {"data.flip", false, "mirror images at random"},
      {"data.prefetch", whole(2), "batches made ahead by a thread; 0: none", between(0, 64)}};
}

Schema train_keys() {
  return {{"train.epochs", whole(5), "passes over the data", at_least(0)},
          {"train.batch", whole(128), "samples a step, over all ranks", at_least(1)},
          {"train.batch_per_rank", whole(0), "samples a step and rank; 0: train.batch divided over the ranks", at_least(0)},
          {"train.max_steps", whole(0), "stop after so many steps; 0: after the epochs", at_least(0)},
          {"train.loss", "cross_entropy", "loss", one_of({"cross_entropy", "nll", "mse"})},
          {"train.label_smoothing", 0.0, "of cross_entropy", between(0, 0.99)},
          {"train.precision", "f32", "bf16, and for gpt f16 with a scaled loss: forward and loss under autocast, weights stay f32",
           one_of({"f32", "bf16", "f16"})},
          {"train.recompute", "none",
           "text: backward computes again whole blocks (full) or, of a gpt, what is cheap (selective), instead of keeping it",
           one_of({"none", "selective", "full"})},
          {"train.balance", "even", "of a batch over the ranks: even, or by the speed that each is measured to have",
           one_of({"even", "speed"})},
          {"train.seed", whole(1), "of weights, order of samples and augmentation", at_least(0)},
          {"train.reproducible", false, "the same bits at any number of ranks; slower"},
          {"train.micro_shards", whole(4), "reproducible: parts of a batch, a power of two and a multiple of the ranks that share it",
           between(1, 1024)},
          {"train.eval_every", whole(1), "epochs between evaluations; 0: only at the end", at_least(0)},
          {"train.eval_steps", whole(0), "steps between evaluations within an epoch; 0: none", at_least(0)},
          {"train.eval_batch", whole(250), "samples of a block of the evaluation", at_least(1)},
          {"train.checkpoint_every", whole(1), "epochs between checkpoints; 0: none", at_least(0)},
          {"train.keep", whole(3), "checkpoints kept; 0: all", at_least(0)},
          {"train.log_every", whole(10), "steps between reductions of the loss over ranks and looks at signals", at_least(1)}};
}

Schema optimizer_keys() {
  return {
      {"optimizer.name", "sgd", "optimiser", one_of({"sgd", "rmsprop", "adagrad", "adam", "adamw"})},
      {"optimizer.lr", 0.1, "learning rate", at_least(0)},
      {"optimizer.momentum", 0.9, "sgd, rmsprop", between(0, 1)},
      {"optimizer.nesterov", false, "sgd"},
      {"optimizer.alpha", 0.99, "rmsprop: decay of the squares", between(0, 1)},
      {"optimizer.betas", std::vector<double>{0.9, 0.999}, "adam, adamw", between(0, 1)},
      {"optimizer.eps", 1e-8, "rmsprop, adagrad, adam, adamw", at_least(0)},
      {"optimizer.weight_decay", 0.0, "L2; adamw: decoupled", at_least(0)},
      {"optimizer.l1", 0.0, "L1", at_least(0)},
      {"optimizer.decay_vectors", true, "false: biases and normalisation go without weight decay and L1"},
      {"optimizer.max_grad_norm", 0.0, "the global gradient norm is clipped to this; 0: no clipping", at_least(0)},
      {"schedule.name", "cosine", "of the learning rate over the epochs", one_of({"constant", "step", "cosine"})},
      {"schedule.warmup_epochs", 0.0, "linear warm-up", at_least(0)},
      {"schedule.period_epochs", 0.0, "step: epochs between drops; cosine: its length; 0: all epochs", at_least(0)},
      {"schedule.gamma", 0.1, "step: factor of a drop", between(0, 1)},
      {"schedule.minimum", 0.0, "cosine: learning rate at its end", at_least(0)},
      {"schedule.reference_batch", whole(0), "optimizer.lr is meant for this global batch and scaled linearly; 0: as it is", at_least(0)}};
}

Schema run_keys() {
  return {{"parallel.weights", "auto", "shared: once a host; private: a copy a rank", one_of({"auto", "shared", "private"})},
          {"parallel.dp", whole(0), "text: replicas, which share each batch; 0: what the others leave", at_least(0)},
          {"parallel.fsdp", whole(1), "text: replicas that share optimiser state, gradients and parameters too", at_least(1)},
          {"parallel.tp", whole(1), "gpt: ranks that share the layers", at_least(1)},
          {"parallel.pp", whole(1), "text: ranks in a pipeline, each with layers of its own", at_least(1)},
          {"parallel.cp", whole(1), "gpt: ranks that share each sequence", at_least(1)},
          {"parallel.ep", whole(1), "gpt: replicas that share the experts", at_least(1)},
          {"parallel.context", "ring", "cp: keys and values go round the ranks, or each rank takes some heads", one_of({"ring", "heads"})},
          {"parallel.zero_stage", whole(3), "fsdp: 1 shares optimiser state, 2 gradients too, 3 parameters too", between(1, 3)},
          {"parallel.schedule", "1f1b", "pp: how micro-batches go through the stages (docs/pipelines.md)", one_of(schedules())},
          {"parallel.micro_batches", whole(0), "text: parts of a replica's batch, one after the other; 0: 4 for each rank of pp, else 1",
           at_least(0)},
          {"parallel.cuts", std::vector<std::int64_t>{}, "pp: the first block of each stage but the first; empty: by measured times",
           at_least(1)},
          {"parallel.codec", "none", "how gradients are compressed between hosts: none, bf16, int8:64, topk:0.01, powersgd:4, auto, …"},
          {"parallel.bucket_mb", 0.0, "size of a bucket of gradients between hosts; 0: 25, tuned where no bit of the result depends on it",
           between(0, 4096)},
          {"parallel.overlap_forward", true, "between hosts, gradients still travel while the next forward begins: front layers' first"},
          {"comm.transport", "auto", "shm: shared memory; tcp; mpi: under mpirun", one_of({"auto", "shm", "tcp", "mpi"})},
          {"comm.timeout_s", 300.0, "how long to wait for a peer", between(0.1, 86400)},
          {"comm.interface", "", "address, network (10.0.0.0/8) or interface that TCP listens on; empty: found"},
          {"run.dir", "runs", "where run folders are made"},
          {"run.name", "", "of the run folder; empty: date and recipe"}};
}

// Where recipes are looked for: here, and in the folders above (so that it works from build/ too).
std::vector<fs::path> recipe_folders() {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (auto at = fs::current_path(ignored); !at.empty(); at = at.parent_path()) {
    if (fs::is_directory(at / "recipes", ignored)) folders.push_back(at / "recipes");
    if (at == at.root_path()) break;
  }
  return folders;
}

std::vector<std::string> recipes_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (fs::is_regular_file(entry.path() / "recipe.toml", ignored)) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void fail_unknown(const std::string& recipe, const std::vector<fs::path>& folders) {
  std::string name = fs::path(recipe).filename().string();
  if (name.empty()) name = fs::path(recipe).parent_path().filename().string();
  std::vector<std::string> known;
  for (const auto& folder : folders) {
    const auto more = recipes_in(folder);
    known.insert(known.end(), more.begin(), more.end());
  }
  const auto near = nearest(name, known);
  std::string hint;
  for (const auto& one : known) hint += (hint.empty() ? "; there are: " : ", ") + one;
  if (near) hint = "; did you mean \"" + *near + "\"?";
  throw Error(Errc::kBadConfig, "no recipe \"" + recipe + "\": neither a folder with a recipe.toml nor a name in recipes/" + hint);
}

// Keys that a model has no use for, and why.
struct Misfits {
  std::vector<std::string> keys;
  const char* why;
};

Misfits misfits_of(const std::string& model) {
  if (model == "gpt") return {{"model.tied"}, "is for model.name = \"lstm\"; a GPT's weights are tied as model.family says"};
  if (model == "lstm") {
    return {{"parallel.tp", "parallel.cp", "parallel.ep", "model.family", "model.heads", "model.kv_heads", "model.experts"},
            "is for model.name = \"gpt\"; an LSTM's layers are not divided, and have no attention"};
  }
  return {{"parallel.dp", "parallel.fsdp", "parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep", "parallel.micro_batches",
           "parallel.cuts", "train.recompute"},
          "is for texts; a model of images is replicated"};
}

// What goes by its default is not asked for.
void refuse_misfits(const Config& config) {
  const std::string& model = config.get_string("model.name");
  const Misfits misfits = misfits_of(model);
  const auto rows = config.describe(), defaults = Config(config.schema()).describe();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool set = rows[i].value != defaults[i].value;
    if (!set || std::find(misfits.keys.begin(), misfits.keys.end(), rows[i].key) == misfits.keys.end()) continue;
    throw Error(Errc::kBadConfig, rows[i].key + " (" + rows[i].origin + ") " + misfits.why + ": leave it at " + defaults[i].value);
  }
  if (model != "gpt" && config.get_string("train.precision") == "f16") {
    throw Error(Errc::kBadConfig, "train.precision (" + config.origin("train.precision") +
                                      ") = \"f16\" is for model.name = \"gpt\"; use \"bf16\" or \"f32\"");
  }
  if (model == "lstm" && config.get_string("train.recompute") == "selective") {
    throw Error(Errc::kBadConfig, "train.recompute (" + config.origin("train.recompute") +
                                      ") = \"selective\" is for model.name = \"gpt\"; use \"full\" or \"none\"");
  }
}

bool is_power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

}  // namespace

Schema recipe_schema() { return Schema().add(data_keys()).add(train_keys()).add(optimizer_keys()).add(run_keys()); }

std::string find_recipe(const std::string& recipe) {
  std::error_code ignored;
  const fs::path path(recipe);
  if (fs::is_regular_file(path, ignored)) return path.string();
  if (fs::is_regular_file(path / "recipe.toml", ignored)) return (path / "recipe.toml").string();
  const auto folders = recipe_folders();
  for (const auto& folder : folders) {
    if (!recipe.empty() && fs::is_regular_file(folder / recipe / "recipe.toml", ignored)) return (folder / recipe / "recipe.toml").string();
  }
  fail_unknown(recipe, folders);
}

std::string recipe_name(const std::string& path) {
  const fs::path file(path);
  if (file.filename() != "recipe.toml") return file.stem().string();
  std::error_code ignored;
  return fs::weakly_canonical(file, ignored).parent_path().filename().string();
}

void check_recipe(const Config& config) {
  if (config.get_doubles("optimizer.betas").size() != 2) {
    throw Error(Errc::kBadConfig, "optimizer.betas (" + config.origin("optimizer.betas") + ") needs two numbers");
  }
  const std::string& model = config.get_string("model.name");
  if ((config.get_string("data.name") == "text") != (model == "gpt" || model == "lstm")) {
    throw Error(Errc::kBadConfig, "data.name = \"text\" and model.name = \"gpt\" or \"lstm\" go together (" + config.origin("model.name") +
                                      ", " + config.origin("data.name") + ")");
  }
  refuse_misfits(config);
  try {
    compress::parse(config.get_string("parallel.codec"));
  } catch (const Error& error) {
    throw Error(Errc::kBadConfig, "parallel.codec (" + config.origin("parallel.codec") + "): " + error.message());
  }
}

Config load_recipe(const std::string& recipe, const std::vector<std::string>& assignments) {
  Config config = Config::load(find_recipe(recipe), recipe_schema());
  for (const auto& assignment : assignments) config.set(assignment);
  check_recipe(config);
  return config;
}

Batches plan_batches(const Config& config, int world, std::int64_t samples) {
  Batches batches;
  const auto per_rank = config.get_int("train.batch_per_rank");
  batches.global = per_rank > 0 ? per_rank * world : config.get_int("train.batch");
  if (batches.global < world) {
    throw Error(Errc::kBadConfig, "train.batch = " + std::to_string(batches.global) + " cannot be divided over " + std::to_string(world) +
                                      " ranks; give at least one sample to each");
  }
  batches.per_epoch = (samples + batches.global - 1) / batches.global;
  const auto reference = config.get_int("schedule.reference_batch");
  batches.base_rate = config.get_double("optimizer.lr");
  if (reference > 0) batches.base_rate = optim::linear_scaling(batches.base_rate, 1, batches.global, reference);
  if (!config.get_bool("train.reproducible")) return batches;
  const auto shards = config.get_int("train.micro_shards");
  if (!is_power_of_two(shards) || shards % world != 0) {
    throw Error(Errc::kBadConfig, "train.micro_shards = " + std::to_string(shards) + " must be a power of two and a multiple of the " +
                                      std::to_string(world) + " ranks where train.reproducible is set");
  }
  if (config.get_string("train.balance") != "even") {
    throw Error(Errc::kBadConfig,
                "train.balance = \"speed\" splits batches by times, which no two runs have alike; leave it \"even\" where "
                "train.reproducible is set");
  }
  if (config.get_bool("model.sync_batch_norm")) {
    throw Error(
        Errc::kBadConfig,
        "model.sync_batch_norm takes statistics over what the ranks have at a time, which differs at each number of ranks; leave it "
        "false where train.reproducible is set");
  }
  if (config.get_string("parallel.codec") != "none") {
    throw Error(Errc::kBadConfig,
                "parallel.codec rounds gradients differently at each number of ranks; leave it at \"none\" where "
                "train.reproducible is set");
  }
  return batches;
}

}  // namespace weft::train
