// Measures what codecs cost, for plans that choose one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/parallel/compose/model.h"
#include "weft/plan/step/step.h"

namespace weft::train::internal {

// Codecs that a plan may choose where the recipe says "auto": "none", then those of
// codec = "auto" (compress/choose.h), in the order of rising error.
std::vector<std::string> codecs_of_plans();

// The costs of these codecs for gradients of the model: of the slowest rank. Takes some hundredths
// of a second. Collective.
std::map<std::string, plan::CodecCost> measure_codecs(const parallel::BlockModel& model,
                                                      const Group& world);

}  // namespace weft::train::internal
