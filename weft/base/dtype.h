// Element types and reductions, for code that does not use libtorch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

enum class DType : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

// kAvg is the sum divided by the number of contributions, for floating types only. Bit operations
// are for integer types and kBool.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBitAnd, kBitOr, kBitXor };

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16: return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool: return 1;
  }
  return 0;
}

constexpr bool is_floating(DType type) {
  return type == DType::kF64 || type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

constexpr const char* to_string(DType type) {
  constexpr const char* kNames[] = {"float64", "float32", "float16", "bfloat16", "int64",
                                    "int32",   "int16",   "int8",    "uint8",    "bool"};
  return kNames[static_cast<int>(type)];
}

constexpr const char* to_string(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor"};
  return kNames[static_cast<int>(op)];
}

}  // namespace weft
