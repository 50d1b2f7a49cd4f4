// Recipes for the planner: the job that a recipe describes, and a plan as a fragment of a recipe.
#pragma once

#include <string>

#include "weft/plan/search/search.h"
#include "weft/plan/step/step.h"

namespace weft {
class Config;
}

namespace weft::train {

// The model, global batch, precision, optimizer and layout of a recipe, on a cluster. `vocabulary`:
// tokens of a text recipe whose tokenizer does not tell it (a tokenizer.json); 0: 50257. Throws
// Error(kBadConfig), naming the key, for a model that the planner cannot describe (lstm, mixer,
// mlp), and Error(kInvalidArgument) as plan::complete() does.
plan::Job planned_job(const Config& config, const plan::Cluster& cluster,
                      std::int64_t vocabulary = 0);

// The axes and options that a recipe of this model can run on weft.
plan::Space space_of(const Config& config);

// The keys of [parallel] and [train] that make the trainer use the layout.
std::string recipe_fragment(const plan::Layout& layout, const plan::Job& job);

}  // namespace weft::train
