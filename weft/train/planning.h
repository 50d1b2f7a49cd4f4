// Recipes for the planner: the job that a recipe describes, a plan as a fragment of a recipe, and
// measured profiles of machines and models.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/plan/model/profile.h"
#include "weft/plan/search/search.h"
#include "weft/plan/step/step.h"

namespace weft {
class Config;
}

namespace weft::train {

struct PlannedOptions {
  // Tokens of a text recipe whose tokenizer does not tell it (a tokenizer.json). 0: 50257.
  std::int64_t vocabulary = 0;
  std::string profile;                          // File of weft plan profile RECIPE. Empty: none.
  std::shared_ptr<const plan::Profile> blocks;  // The same, measured in this process.
};

// The model, global batch, precision, optimizer and layout of a recipe, on a cluster. Warns if the
// profile was taken on another machine. Throws Error(kBadConfig), naming the key, for a model that
// the planner can describe by a profile only (lstm, mixer, mlp), Error(kInvalidArgument) as
// plan::complete() does, and what plan::load_profile() throws.
plan::Job planned_job(const Config& config, const plan::Cluster& cluster,
                      const PlannedOptions& options = {});

// Number of parameters of the recipe's model; nullopt for a model that the planner can describe by
// a profile only.
std::optional<std::int64_t> parameters_of(const Config& config);

// The axes and options that a recipe of this model can run on weft.
plan::Space space_of(const Config& config);

// The keys of [parallel] and [train] that make the trainer use the layout.
std::string recipe_fragment(const plan::Layout& layout, const plan::Job& job);

// Measures the machines of the group: matrix products, memory, links. All ranks get the same. Takes
// some seconds. Collective.
plan::Cluster profile_machine(const Group& world);

struct ProfileOptions {
  std::vector<std::int64_t> batches = {1, 4};  // Samples of each measurement, ascending.
  std::int64_t vocabulary = 0;                 // As PlannedOptions.
};

// Measures forward, backward and bytes of the recipe's blocks, on all ranks at once. A text recipe
// is measured on made-up tokens; an image recipe on its data. All ranks get the same. Collective.
plan::Profile profile_recipe(const Config& config, const Group& world,
                             const ProfileOptions& options);

struct ChosenPlan {
  std::string layout;     // "pp 2 x dp 4, 1f1b, micro-batch 2".
  double step_s = 0;      // Predicted.
  double memory_gib = 0;  // Predicted, of the fullest rank.
  double planning_s = 0;  // Seconds of measurement and search.
};

// For parallel.plan = "auto": measures the machines and the recipe's blocks, searches for the
// fastest layout on rank 0, and sets its keys on all ranks. Takes some seconds. Collective. Throws
// Error(kBadConfig) on all ranks if the recipe sets an axis itself, or if no layout fits: then with
// the nearest one and what it needs.
ChosenPlan plan_recipe(Config& config, const Group& world);

}  // namespace weft::train
