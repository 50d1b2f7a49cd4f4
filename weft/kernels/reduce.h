// Vectorized reductions and conversions over flat memory. The code is chosen for the processor at
// run time.
//
// Results do not depend on the instruction set, as there is no contraction and the order of
// operations is fixed. Hosts with different processors get the same bits. Pure functions: any
// thread may call them at any time. No alignment is needed; 64-byte aligned memory is fastest.
#pragma once

#include <cstdint>
#include <string>

#include "weft/base/dtype.h"

namespace weft::kernels {

// Operands are combined in a fixed binary tree over their indices: ((0+1)+(2+3))+…. The left
// subtree of n operands has the largest power of two below n, so 4 operands are the sum of two sums
// of 2. float16 and bfloat16 accumulate in float32 and are rounded once.
struct ReduceArgs {
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::int64_t count = 0;  // Number of elements.
  // Factor of the result, applied after the sum in the accumulation type. kSum and floating-point
  // types only.
  double scale = 1.0;
  // Optional array of num_sources weights: source i is multiplied by weights[i] before the sum.
  // kSum and floating-point types only.
  const double* weights = nullptr;
  // kAvg divides by it, rounding once. 0: num_sources. Other operations ignore it.
  int divisor = 0;
};

// True if elements of this type have the operation: kAvg is for floating-point types, bitwise
// operations are for integers and bool.
constexpr bool has_operation(DType type, ReduceOp op) {
  const bool bits = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  return is_floating(type) ? !bits : op != ReduceOp::kAvg;
}

// "int32 has no avg; use another operation or convert the data".
std::string no_operation(DType type, ReduceOp op);

// Reads count elements of each of `num_sources` arrays (>= 1) and writes the reduction to each of
// `num_destinations` arrays (>= 1). A destination may be the same array as a source, but must not
// overlap it partially. Throws Error(kInvalidArgument) unless has_operation().
void reduce(void* const* destinations, int num_destinations, const void* const* sources,
            int num_sources, const ReduceArgs& args);

// Converts between any two of float32, float16 and bfloat16, rounding to nearest even. NaN stays
// NaN. If the types are equal, it copies.
void cast(void* destination, DType to, const void* source, DType from, std::int64_t count);

// Copies with non-temporal stores, which bypass the caches, for large data that is not read again
// soon. `destination` and `source` must not overlap. About twice as fast as memcpy(), which uses
// such stores only above a size that can be hundreds of megabytes on virtual machines.
void stream_copy(void* destination, const void* source, std::int64_t bytes);

// Sum of squares of a float32 array in float64, in an order fixed by count alone.
double sum_of_squares(const float* values, std::int64_t count);

// True if every number is finite and at most `limit` in magnitude. `limit` is not negative.
bool is_within(const float* values, std::int64_t count, float limit);

// destination[i] *= factor.
void scale(float* destination, std::int64_t count, float factor);

}  // namespace weft::kernels
