// The field `model` of a scenario.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "weft/plan/model/model.h"
#include "weft/plan/scenario/internal/fields.h"

namespace weft::plan::internal {

// `object` may be null: the default model. Adds assumptions and ignored fields to `notes`. Throws
// Error(kInvalidArgument), naming the field.
Model read_model(const nlohmann::json* object, std::vector<std::string>& notes);

}  // namespace weft::plan::internal
