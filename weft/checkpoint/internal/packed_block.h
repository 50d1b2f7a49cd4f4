// A packed state (packed.h) as its slices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/checkpoint/reader.h"

namespace weft::checkpoint::internal {

// Keys of the metadata.
constexpr const char *kPackedStep = "step", *kPackedState = "state.", *kPackedShape = "shape.";

// "128,256"; "" for a single number.
std::string shape_text(const std::vector<std::int64_t>& shape);

struct PackedSlice {
  std::string part, name;
  std::vector<std::int64_t> shape, offset;  // of the whole tensor; in the whole tensor
  std::vector<std::int64_t> sizes;
  DType dtype = DType::kF32;
  std::int64_t begin = 0;         // of its values in the block
  at::Tensor values = {};         // view of the block; undefined if it is elsewhere
  Reader::Fetch fetch = nullptr;  // for a block that is elsewhere
};

class PackedBlock {
 public:
  // Throws Error(kCorrupt), with `where`, if it is not a packed state.
  PackedBlock(const Reader::Packed& packed, const std::string& where);

  std::int64_t step() const { return step_; }
  const StringMap& state() const { return state_; }
  std::vector<PackedSlice> take_slices() { return std::move(slices_); }

 private:
  std::int64_t step_ = 0;
  StringMap state_;
  std::vector<PackedSlice> slices_;
};

// Bytes of the header of a block; 0 if it has no valid one. `bytes`: size of the whole block.
std::int64_t header_bytes(const at::Tensor& block, std::int64_t bytes);

}  // namespace weft::checkpoint::internal
