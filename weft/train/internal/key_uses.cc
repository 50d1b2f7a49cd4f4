#include "weft/train/internal/key_uses.h"

#include <algorithm>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/models/registry.h"
#include "weft/strategy/strategy.h"

namespace weft::train::internal {
namespace {

// A key that applies only to some models, data sets, optimizers or schedules. `chosen_by` is the
// key that selects them, and `of` lists the values that use `key`.
struct Use {
  const char* key;
  const char* chosen_by;
  std::vector<std::string> of;
};

const std::vector<Use>& uses() {
  static const std::vector<std::string> workers(strategy::names().begin() + 1,
                                                strategy::names().end());
  static const std::vector<std::string> resnets = {"resnet18", "resnet34", "resnet50", "resnet101",
                                                   "resnet152"};
  static const std::vector<std::string> images = {"fashion-mnist", "shapes"};
  static const std::vector<Use> all = {
      {"model.from", "model.name", {"gpt"}},
      {"model.family", "model.name", {"gpt"}},
      {"model.layers", "model.name", {"gpt", "lstm", "vit", "mixer"}},
      {"model.width", "model.name", {"gpt", "lstm", "vit", "mixer"}},
      {"model.heads", "model.name", {"gpt", "vit"}},
      {"model.kv_heads", "model.name", {"gpt"}},
      {"model.sequence", "model.name", {"gpt", "lstm"}},
      {"model.experts", "model.name", {"gpt"}},
      {"model.experts_top_k", "model.name", {"gpt"}},
      {"model.experts_capacity", "model.name", {"gpt"}},
      {"model.experts_balance", "model.name", {"gpt"}},
      {"model.tied", "model.name", {"lstm"}},
      {"model.dropout", "model.name", {"gpt", "lstm", "vit"}},
      {"model.hidden", "model.name", {"mlp"}},
      {"model.stem", "model.name", resnets},
      {"model.patch", "model.name", {"vit", "mixer"}},
      {"model.pool", "model.name", {"vit"}},
      {"model.sync_batch_norm", "model.name", resnets},
      {"data.file", "data.name", {"text"}},
      {"data.tokenizer", "data.name", {"text"}},
      {"data.validation", "data.name", {"text"}},
      {"data.pack_documents", "model.name", {"gpt"}},
      {"data.dir", "data.name", {"fashion-mnist"}},
      {"data.seed", "data.name", {"shapes"}},
      {"data.crop_padding", "data.name", images},
      {"data.flip", "data.name", images},
      {"train.loss", "data.name", images},
      {"train.label_smoothing", "data.name", images},
      {"optimizer.momentum", "optimizer.name", {"sgd", "rmsprop", "lars", "muon"}},
      {"optimizer.nesterov", "optimizer.name", {"sgd", "lars"}},
      {"optimizer.trust", "optimizer.name", {"lars"}},
      {"optimizer.update_clip", "optimizer.name", {"adafactor"}},
      {"optimizer.adam_lr", "optimizer.name", {"muon"}},
      {"optimizer.l1", "optimizer.name", {"sgd", "rmsprop", "adagrad", "adam", "adamw", "lion"}},
      {"optimizer.alpha", "optimizer.name", {"rmsprop"}},
      {"optimizer.betas", "optimizer.name", {"adam", "adamw", "lion", "lamb", "muon"}},
      {"optimizer.eps", "optimizer.name", {"rmsprop", "adagrad", "adam", "adamw", "lamb", "muon"}},
      {"train.max_batch", "train.batch_schedule", {"noise"}},
      {"strategy.period", "strategy.name", workers},
      {"strategy.sync_steps", "strategy.name", workers},
      {"strategy.adapt_steps", "strategy.name", workers},
      {"strategy.lr", "strategy.name", {"slow_momentum", "diloco", "downpour", "gossip"}},
      {"strategy.momentum", "strategy.name", {"slow_momentum", "diloco"}},
      {"strategy.fragments", "strategy.name", {"diloco"}},
      {"strategy.beta", "strategy.name", {"easgd", "easgd_async"}},
      {"strategy.graph", "strategy.name", {"gossip", "ad_psgd"}},
      {"strategy.staleness", "strategy.name", {"downpour", "easgd_async"}},
      {"strategy.delay_compensation", "strategy.name", {"downpour"}},
      {"strategy.backup", "strategy.name", {"sync"}},
      {"strategy.codec", "strategy.name", workers},
      {"schedule.gamma", "schedule.name", {"step"}},
      {"schedule.minimum", "schedule.name", {"cosine"}},
      {"schedule.period_epochs", "schedule.name", {"step", "cosine"}},
      {"parallel.tp", "model.name", {"gpt", "vit", "mixer"}},
      {"parallel.cp", "model.name", {"gpt"}},
      {"parallel.context", "model.name", {"gpt"}},
      {"parallel.ep", "model.name", {"gpt"}},
  };
  return all;
}

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

}  // namespace

void refuse_unused_keys(const Config& config) {
  for (const auto& row : config.describe()) {
    if (row.value == row.fallback) continue;
    const auto use = std::find_if(uses().begin(), uses().end(),
                                  [&](const Use& one) { return one.key == row.key; });
    if (use == uses().end() || config.schema().find(use->chosen_by) == nullptr) continue;
    const std::string& chosen = config.get_string(use->chosen_by);
    if (std::find(use->of.begin(), use->of.end(), chosen) != use->of.end()) continue;
    if (use->chosen_by == std::string("model.name") && !is_known_model(chosen)) continue;
    throw Error(Errc::kBadConfig, row.key + " (" + row.origin + ") is for " + use->chosen_by +
                                      " = " + any_of(use->of) + ", not \"" + chosen +
                                      "\": leave it at " + row.fallback);
  }
}

}  // namespace weft::train::internal
