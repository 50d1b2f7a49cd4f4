// Text models that start from weights in Hugging Face's format (model.from).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "weft/base/config.h"
#include "weft/checkpoint/slice.h"
#include "weft/models/huggingface.h"
#include "weft/train/internal/recipe_settings.h"

namespace weft::train::internal {

// Calls `read`. An error of weights that do not fit the folder's config.json gets the folder's
// name.
void in_folder(const std::string& folder, const std::function<void()>& read);

// Fills in the keys that follow from model.from: model.config, the contents of its config.json,
// and data.tokenizer, its tokenizer.json, unless the recipe sets one. Does nothing without
// model.from, and to a configuration that is filled in already. Throws Error(kBadConfig) for a
// folder without these files, and as read_huggingface_config().
void take_pretrained(Config& config);

// Throws Error(kBadConfig) for keys that contradict model.from.
void check_pretrained(const Config& config);

// Options of the model of model.config, with the recipe's dropout. nullopt: the recipe's own keys
// describe the model. Throws Error(kBadConfig) where model.sequence is longer than the model's
// positions.
std::optional<models::HuggingFaceConfig> pretrained(const RecipeSettings& settings);

// The weights of model.from. Each rank reads the bytes of its own slices. Throws as
// huggingface_files() and huggingface_source().
std::unique_ptr<checkpoint::SliceSource> pretrained_weights(const RecipeSettings& settings);

}  // namespace weft::train::internal
