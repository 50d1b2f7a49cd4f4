// A packed state (packed.h) as its slices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "weft/checkpoint/safetensors.h"

namespace weft::checkpoint::internal {

// Keys of the metadata.
constexpr const char *kPackedStep = "step", *kPackedState = "state.", *kPackedShape = "shape.";

// "128,256"; "" for a single number.
std::string shape_text(const std::vector<std::int64_t>& shape);

struct PackedSlice {
  std::string part, name;
  std::vector<std::int64_t> shape, offset;  // of the whole tensor; in the whole tensor
  at::Tensor values;                        // view of the block
};

class PackedBlock {
 public:
  // `block`: uint8 [n], contiguous. Throws Error(kCorrupt), with `where`, if it is not a packed
  // state.
  PackedBlock(const at::Tensor& block, const std::string& where);

  std::int64_t step() const { return step_; }
  const StringMap& state() const { return state_; }
  const std::vector<PackedSlice>& slices() const { return slices_; }

 private:
  std::int64_t step_ = 0;
  StringMap state_;
  std::vector<PackedSlice> slices_;
};

}  // namespace weft::checkpoint::internal
