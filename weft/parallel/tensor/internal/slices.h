// Slices of the weight and bias of a linear or convolution layer.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "weft/parallel/tensor/context.h"
#include "weft/parallel/tensor/linear.h"

namespace weft::parallel::internal {

// weight [out, in, …], bias [out].
inline std::map<std::string, Slice> slices_of(Split split, std::int64_t out, std::int64_t in,
                                              bool bias) {
  std::map<std::string, Slice> all;
  if (split == Split::kColumn) {
    all["weight"] = {0, out};
    if (bias) all["bias"] = {0, out};
  } else if (split == Split::kRow) {
    all["weight"] = {1, in};
  }
  return all;
}

// This rank's part of the named parameter. Parameters that are not among the slices are whole.
inline at::Tensor part_of(const std::map<std::string, Slice>& slices, const char* name,
                          const at::Tensor& whole, const TensorParallel& tp) {
  const auto slice = slices.find(name);
  return slice == slices.end() ? whole : slice_of(whole, slice->second, tp);
}

}  // namespace weft::parallel::internal
