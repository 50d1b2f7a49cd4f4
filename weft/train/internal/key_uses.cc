#include "weft/train/internal/key_uses.h"

#include <algorithm>
#include <utility>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/models/registry.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace internal {
namespace {

std::string any_of(const std::vector<std::string>& names) {
  return "\"" + joined(names, "\" or \"") + "\"";
}

// Unknown models are rejected later, where the model is created, with a list of the known names.
bool is_known_model(const std::string& name) {
  const auto images = models::list_models();
  return name == "gpt" || name == "lstm" ||
         std::any_of(images.begin(), images.end(),
                     [&](const models::ModelEntry& entry) { return entry.name == name; });
}

// A line for each key that differs from its default and is not used.
std::vector<std::string> unused_keys(const Config& config) {
  std::vector<std::string> lines;
  for (const auto& row : config.describe()) {
    const auto& [key, values] = config.schema().find(row.key)->used_by;
    if (row.value == row.fallback || config.schema().find(key) == nullptr) continue;
    const std::string& chosen = config.get_string(key);
    if (std::ranges::find(values, chosen) != values.end()) continue;
    if (key == "model.name" && !is_known_model(chosen)) continue;
    lines.push_back(row.key + " (" + row.origin + ") is for " + key + " = " + any_of(values) +
                    ", not \"" + chosen + "\": leave it at " + row.fallback);
  }
  return lines;
}

// Keys that other keys leave without effect.
struct Idle {
  std::vector<const char*> keys;
  bool is_idle;
  const char* why;
};

std::vector<Idle> idle_training(const Config& config) {
  const bool is_recipe = config.schema().find("model.name") != nullptr;
  const auto is_zero = [&](const char* key) { return config.get_int(key) == 0; };
  return {
      {{"train.micro_shards"},
       !config.get_bool("train.reproducible"),
       "train.reproducible is false"},
      {{"train.batch"}, !is_zero("train.batch_per_rank"), "train.batch_per_rank is set"},
      {{"train.peak_tflops"},
       is_recipe && config.get_string("model.name") != "gpt",
       "the FLOPs of a sample are known for gpt only"},
      {{"optimizer.decay_vectors"},
       config.get_double("optimizer.weight_decay") == 0 && config.get_double("optimizer.l1") == 0,
       "neither optimizer.weight_decay nor optimizer.l1 is set"},
      {{"optimizer.decay_vectors"},
       config.get_string("optimizer.name") == "lars",
       "lars never decays biases and normalization layers"},
      {{"train.best_metric", "train.best_is", "train.min_improvement"},
       !config.get_bool("train.keep_best") && is_zero("train.patience"),
       "neither train.keep_best nor train.patience is set"},
      {{"train.keep"},
       is_zero("train.checkpoint_every") && is_zero("train.checkpoint_steps") &&
           config.get_double("train.checkpoint_minutes") == 0 &&
           !config.get_bool("train.keep_best"),
       "none of train.checkpoint_every, checkpoint_steps, checkpoint_minutes and keep_best is set"},
      {{"model.experts_top_k", "model.experts_capacity", "model.experts_balance"},
       is_recipe && is_zero("model.experts"),
       "model.experts is 0"}};
}

std::vector<Idle> idle_parallelism(const Config& config) {
  const bool is_planned = config.get_string("parallel.plan") == "auto";
  const auto is_one = [&](const char* axis) { return !is_planned && config.get_int(axis) == 1; };
  const auto is_used = [&](const char* axis) { return !is_planned && config.get_int(axis) > 1; };
  const bool has_workers =
      config.get_string("strategy.name") != "sync" || config.get_int("strategy.backup") > 0;
  const std::vector<const char*> buckets = {"parallel.bucket_mb", "parallel.overlap_forward"};
  return {{{"train.recompute", "parallel.micro_batches", "parallel.cuts", "parallel.zero_stage",
            "parallel.schedule"},
           is_planned,
           "parallel.plan = \"auto\" chooses it"},
          {{"parallel.zero_stage"}, is_one("parallel.fsdp"), "parallel.fsdp is 1"},
          {{"parallel.schedule"}, is_one("parallel.pp"), "parallel.pp is 1"},
          {{"parallel.context"}, is_one("parallel.cp"), "parallel.cp is 1"},
          {buckets, is_used("parallel.fsdp"), "parallel.fsdp is above 1"},
          {buckets, is_used("parallel.ep"), "parallel.ep is above 1"},
          // The ranks of cp in a worker average their gradients at every step.
          {buckets, has_workers && is_one("parallel.cp"),
           "the workers of a strategy send no buckets of gradients"}};
}

}  // namespace

void refuse_unused_keys(const Config& config) {
  const std::vector<std::string> lines = unused_keys(config);
  if (!lines.empty()) throw Error(Errc::kBadConfig, lines.front());
}

std::vector<std::string> idle_options(const Options& options) {
  Options given = options;
  const Options defaults = {};
  // A callback may ask for checkpoints.
  if (options.on_step || options.on_epoch_end) given.keep = defaults.keep;
  // A constant rate has no period, whatever the default of LearningRate is.
  if (given.schedule.shape == optim::LearningRate::Shape::kConstant)
    given.schedule.period = defaults.schedule.period;
  const Config config = config_of(given);
  std::vector<std::string> lines = unused_keys(config), idle = idle_keys(config);
  lines.insert(lines.end(), idle.begin(), idle.end());
  // Options without a key.
  const auto add = [&](bool is_idle, const std::string& line) {
    if (is_idle) lines.push_back(line);
  };
  add(options.mesh.is_auto() && options.predict_plan,
      "options.predict_plan has no effect: options.mesh = \"auto\" predicts the step");
  add(options.plan.batch != 0, "options.plan.batch has no effect: set options.batch");
  add(!options.plan.device.is_cpu(), "options.plan.device has no effect: set options.device");
  return lines;
}

std::optional<std::string> idle_copies(const Config& config, bool recovers) {
  if (recovers || config.get_int("train.copy_steps") == 0) return std::nullopt;
  return "train.copy_steps (" + config.origin("train.copy_steps") +
         ") has no effect: no launcher answers the loss of a rank (weft run --max-replacements or "
         "--min-ranks)";
}

}  // namespace internal

std::vector<std::string> idle_keys(const Config& config) {
  std::vector<internal::Idle> all = internal::idle_training(config);
  for (internal::Idle& one : internal::idle_parallelism(config)) all.push_back(std::move(one));
  std::vector<std::string> lines;
  for (const auto& row : config.describe()) {
    if (row.value == row.fallback) continue;
    const auto is_of_row = [&](const internal::Idle& one) {
      return one.is_idle &&
             std::ranges::any_of(one.keys, [&](const std::string& key) { return key == row.key; });
    };
    const auto found = std::ranges::find_if(all, is_of_row);
    if (found != all.end())
      lines.push_back(row.key + " (" + row.origin + ") has no effect: " + found->why);
  }
  return lines;
}

}  // namespace weft::train
