// Recipes: a folder with recipe.toml (what to train and how), expected.toml (what must come out) and README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/base/config.h"

namespace weft::train {

// Every key that a recipe knows, with its default, limits and help.
Schema recipe_schema();

// recipe.toml of a recipe: `recipe` is a folder, a .toml file, or the name of a folder in recipes/. Throws Error(kBadConfig) naming the
// nearest recipe when there is none of that name.
std::string find_recipe(const std::string& recipe);

// "fashion-mnist" for recipes/fashion-mnist/recipe.toml.
std::string recipe_name(const std::string& path);

// Throws Error(kBadConfig) for keys that do not go together at any world, saying where they were set.
void check_recipe(const Config& config);

// Loads a recipe, then applies assignments ("train.epochs=2"). Errors are Error(kBadConfig), naming file, line and the nearest key; as
// check_recipe().
Config load_recipe(const std::string& recipe, const std::vector<std::string>& assignments = {});

// What the keys mean for a world of so many ranks.
struct Batches {
  std::int64_t global = 0;     // samples of one optimiser step, over all ranks
  std::int64_t per_epoch = 0;  // optimiser steps of an epoch
  double base_rate = 0;        // learning rate after linear scaling
};

// train.batch is the global batch, divided over the ranks, so that a recipe takes the same steps at any world; train.batch_per_rank, where
// set, makes it grow with the world. Throws Error(kBadConfig) for keys that contradict each other or this world.
Batches plan_batches(const Config& config, int world, std::int64_t samples);

}  // namespace weft::train
