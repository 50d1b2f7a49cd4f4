// Which slices of a model's state a rank saves or loads, and where they belong.
#pragma once

#include "weft/checkpoint/slice.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/sharded.h"

namespace weft::engine::internal {

// The slices that a rank saves, or those that it fills on loading, for itself or for its host.
// kToLoad takes over what the program has changed in the module. kToReplace and kWeights do not:
// all values, or those of the weights, get new ones.
enum class Wanted { kToSave, kToLoad, kToReplace, kWeights };

// The place of a parameter of this rank in the whole model. Its name is empty if `placing` leaves
// the parameter out.
checkpoint::Rectangle rectangle_of(const Param& param, const Sharded::Placing& placing);

}  // namespace weft::engine::internal
