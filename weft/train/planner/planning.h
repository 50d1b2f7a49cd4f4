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

namespace internal {
struct PlannerComponent;
}

// For Components.
const internal::PlannerComponent& planner_component();

struct PlannedOptions {
  // Tokens of a text recipe whose tokenizer does not tell it (a tokenizer.json). 0: 50257.
  std::int64_t vocabulary = 0;
  std::string profile;                          // File of weft plan profile RECIPE. Empty: none.
  std::shared_ptr<const plan::Profile> blocks;  // The same, measured in this process.
  bool is_program = false;  // `config` is of the options of a program: `blocks` are its model.
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

}  // namespace weft::train
