// The model and the data of a recipe as types: the table of the keys [model] and [data], and of the
// loss of images. settings.h has the other keys.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/train/internal/settings.h"

namespace weft::data {
struct SetOptions;
}

namespace weft::train::internal {

enum class Family { kGpt2, kLlama };

// Each model uses some of them. The table has the meaning and the limits of each key.
struct ModelSettings {
  std::string name = "cnn";
  Family family = Family::kGpt2;
  std::int64_t layers = 4, width = 128, heads = 4, kv_heads = 0, sequence = 128;
  std::int64_t experts = 0, experts_top_k = 2;
  double experts_capacity = 0, experts_balance = 0.01;
  bool tied = true;
  double dropout = 0;
  std::vector<std::int64_t> hidden = {256, 128};
  std::string stem = "3x3";
  std::int64_t patch = 4;
  std::string pool = "token";
  std::string from, config;  // The folder of a pretrained model, and its config.json.
};

// Each data set uses some of them.
struct DataSettings {
  std::string name = "fashion-mnist";
  std::string file, tokenizer = "bytes";
  double validation = 0.1;
  bool pack_documents = false;
  std::string dir;
  std::uint64_t seed = 1;
  int crop_padding = 0;
  bool flip = false;
};

// The loss of images.
struct LossSettings {
  std::string name = "cross_entropy";
  double label_smoothing = 0;
};

struct RecipeSettings {
  ModelSettings model;
  DataSettings data;
  LossSettings loss;
  // Where each key of the recipe was set, for messages.
  std::map<std::string, std::string> origins = {};

  const std::string& origin(const std::string& key) const { return origins.at(key); }
  // "model.from (--set)".
  std::string where(const std::string& key) const { return key + " (" + origin(key) + ")"; }
};

// Calls `visit` for each setting, in the order in which they are shown.
void each_setting(RecipeSettings& settings, SettingsVisitor& visit);

// Throws Error(kInvalidArgument) for a configuration that is not of a recipe_schema().
RecipeSettings recipe_settings_of(const Config& config);

// The data set of images.
data::SetOptions image_set_of(const DataSettings& settings);

}  // namespace weft::train::internal
