// The layouts that a plan may take, and those that it tries.
#pragma once

#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/plan/search/search.h"
#include "weft/train/planner/internal/auto_planner.h"

namespace weft::train::internal {

// Layouts that the recipe can be trained with, or, unless is_recipe, any program.
plan::Space space_for(const Config& config, bool is_recipe, const plan::Job& job);

// Leaves the layouts that are worth some real steps, at most six: the fastest one of each codec, by
// the model, then the others by their time.
void prune(std::vector<PlannedLayout>& layouts);

// Says what the nearest layout needs, if none of `found` fits, or that the time ran out.
std::string too_large(const plan::Found& found, const plan::Job& job);
// Says what a layout needs that does not fit, and which one of `found` does.
std::string does_not_fit(const plan::Layout& layout, const plan::Step& step,
                         const plan::Found& found);

}  // namespace weft::train::internal
