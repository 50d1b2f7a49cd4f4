// Conversions between the dtypes of safetensors files and of torch tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <utility>

#include "weft/base/dtype.h"
#include "weft/base/error.h"

namespace weft::checkpoint::internal {

constexpr std::pair<at::ScalarType, DType> kDTypes[] = {
    {at::kDouble, DType::kF64},    {at::kFloat, DType::kF32}, {at::kHalf, DType::kF16},
    {at::kBFloat16, DType::kBF16}, {at::kLong, DType::kI64},  {at::kInt, DType::kI32},
    {at::kShort, DType::kI16},     {at::kChar, DType::kI8},   {at::kByte, DType::kU8},
    {at::kBool, DType::kBool},
};

// Throws Error(kInvalidArgument) with the tensor's name if its dtype cannot be written.
inline DType dtype_of(const std::string& name, at::ScalarType type) {
  for (const auto& [torch_type, dtype] : kDTypes) {
    if (type == torch_type) return dtype;
  }
  throw Error(Errc::kInvalidArgument, "checkpoint: \"" + name + "\" has dtype " +
                                          c10::toString(type) +
                                          ", which is not among those that are written");
}

// The same for a tensor. It must be defined and dense.
inline DType dtype_of(const std::string& name, const at::Tensor& tensor) {
  WEFT_REQUIRE(tensor.defined() && tensor.layout() == at::kStrided,
               "checkpoint: \"" + name + "\" is undefined or not dense");
  return dtype_of(name, tensor.scalar_type());
}

inline at::ScalarType torch_type_of(DType dtype) {
  return std::find_if(std::begin(kDTypes), std::end(kDTypes),
                      [&](const auto& pair) { return pair.second == dtype; })
      ->first;
}

}  // namespace weft::checkpoint::internal
