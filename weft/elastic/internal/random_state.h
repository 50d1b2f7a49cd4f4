// libtorch's random numbers of each rank, as a part of a saved state.
#pragma once

#include <ATen/core/Tensor.h>

#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"

namespace weft::elastic::internal {

constexpr const char* kRandomPart = "random";

// The state of the CPU's generator.
at::Tensor random_now();
void set_random(const at::Tensor& state);

// The same as slices: this rank's row of one tensor.
checkpoint::Slices random_slices(const Group& world);
// Sets the generator to this rank's row. A rank that has none seeds it anew, by the step and its
// rank.
void load_random(const Group& world, const checkpoint::Reader& reader);

}  // namespace weft::elastic::internal
