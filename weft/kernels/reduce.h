// Reductions and conversions over flat memory, vectorized, chosen for the processor at run time.
//
// Results do not depend on the instruction set: no contraction, the same order everywhere, so that
// hosts of different makes agree bit for bit. Pure functions: any thread may call them at any time.
// No alignment is needed; 64-byte aligned memory is fastest.
#pragma once

#include <cstdint>

#include "weft/base/dtype.h"

namespace weft::kernels {

// What to reduce. Operands are combined along the balanced binary tree over their indices,
// ((0+1)+(2+3))+…: the split puts the largest power of two below n on the left, so that 4 operands
// are the sum of two sums of 2. float16 and bfloat16 accumulate in float32 and are rounded once.
struct ReduceArgs {
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;  // kAvg divides by num_sources
  std::int64_t count = 0;        // elements
  // With op kSum and floating types: the result times this (after the sum, in the accumulation
  // type).
  double scale = 1.0;
  // Optional, num_sources of them, kSum and floating types only: source i counts weights[i] times
  // (before the sum).
  const double* weights = nullptr;
};

// Reads count elements of each of `num_sources` arrays (>= 1) and writes the reduction to each of
// `num_destinations` arrays (>= 1). A destination may be the very same array as a source; partial
// overlap is not allowed.
// Throws Error(kInvalidArgument) for an op that the type does not have (kAvg of integers, bits of
// floats).
void reduce(void* const* destinations, int num_destinations, const void* const* sources,
            int num_sources, const ReduceArgs& args);

// Converts between any two of float32, float16 and bfloat16 (round to nearest even; NaN stays NaN).
// Same type: a copy.
void cast(void* destination, DType to, const void* source, DType from, std::int64_t count);

// Copies memory that is apart from `source`, with stores that go around the caches: for much memory
// that is not read again soon. About twice as fast as memcpy(), which does so only from a size on
// that virtual machines can put at hundreds of megabytes.
void stream_copy(void* destination, const void* source, std::int64_t bytes);

// Sum of squares of a float32 array in float64, in an order fixed by count alone.
double sum_of_squares(const float* values, std::int64_t count);

// destination[i] *= factor.
void scale(float* destination, std::int64_t count, float factor);

}  // namespace weft::kernels
