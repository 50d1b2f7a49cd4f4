// Recipes: a folder with recipe.toml (what to train and how), expected.toml (what must come out)
// and README.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/base/config.h"

namespace weft::train {

// Every key that a recipe knows, with its default, limits and help.
Schema recipe_schema();

// recipe.toml of a recipe: `recipe` is a folder, a .toml file, or the name of a folder in recipes/:
// here, in a folder above, in the checkout of this program, or installed with it
// (share/weft/recipes). Throws Error(kBadConfig) when there is none of that name; it lists the
// folders that were searched, and the nearest name.
std::string find_recipe(const std::string& recipe);

// "fashion-mnist" for recipes/fashion-mnist/recipe.toml.
std::string recipe_name(const std::string& path);

// Throws Error(kBadConfig) for a recipe that does not name its model and its data, and for keys
// that do not go together at any world, saying where they were set.
void check_recipe(const Config& config);

// Throws Error(kBadConfig) if files of the data are not there. weft train calls it before it starts
// ranks, so that one line tells what is missing. Reads nothing.
void check_files(const Config& config);

// Lines for warnings: keys that differ from their defaults and have no effect beside the others,
// such as parallel.zero_stage without parallel.fsdp. `config`: of a recipe, or config_of() of a
// program's options.
std::vector<std::string> idle_keys(const Config& config);

// Loads a recipe, then applies assignments ("train.epochs=2"). Errors are Error(kBadConfig), naming
// file, line and the nearest key; as check_recipe().
Config load_recipe(const std::string& recipe, const std::vector<std::string>& assignments = {});

// The configuration with which a run of the recipe is resumed: the run's own config.toml, with the
// assignments over it, whatever the recipe says today. `name`: the run; empty: the newest run of
// this recipe in run.dir. nullopt where there is no such run. Throws Error(kBadConfig) where the
// run is one of another recipe, and where an assignment changes its model or data.
std::optional<Config> load_recipe_of_run(const std::string& recipe,
                                         const std::vector<std::string>& assignments,
                                         const std::string& name);

// The keys and values that must be equal on all ranks: "optimizer.lr = 0.1; …".
std::string outline_of(const Config& config);

// Whether its data is a text.
bool is_text(const Config& config);

}  // namespace weft::train
