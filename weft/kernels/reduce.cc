#include "weft/kernels/reduce.h"

#include <cstring>
#include <string>

#include "weft/base/error.h"
#include "weft/kernels/internal/level.h"

namespace weft::kernels {

namespace {

// For destinations of at least this many bytes, non-temporal stores are faster (reduce_bench). They
// do not read a cache line before writing it, and they do not evict data that is still to be
// read.
constexpr std::size_t kStreamBytes = std::size_t{4} << 20;

void check(int num_destinations, int num_sources, const ReduceArgs& args) {
  WEFT_REQUIRE(num_destinations >= 1 && num_sources >= 1,
               "reduce: needs at least one source and one destination");
  WEFT_REQUIRE(args.count >= 0,
               "reduce: count is " + std::to_string(args.count) + "; give the number of elements");
  WEFT_REQUIRE(has_operation(args.dtype, args.op), "reduce: " + no_operation(args.dtype, args.op));
  const bool weighted = args.scale != 1.0 || args.weights != nullptr;
  WEFT_REQUIRE(!weighted || (is_floating(args.dtype) && args.op == ReduceOp::kSum),
               std::string("reduce: weights and scale need sums of floating types, not ") +
                   to_string(args.op) + " of " + to_string(args.dtype));
}

// The operation for bool, as in torch: sum is "or", product is "and".
ReduceOp bool_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax: return ReduceOp::kBitOr;
    case ReduceOp::kProduct:
    case ReduceOp::kMin: return ReduceOp::kBitAnd;
    default: return op;
  }
}

bool may_stream(const internal::ReduceJob& job) {
  if (static_cast<std::size_t>(job.args->count) * size_of(job.args->dtype) < kStreamBytes)
    return false;
  for (int d = 0; d < job.num_destinations; ++d) {
    for (int s = 0; s < job.num_sources; ++s) {
      if (job.destinations[d] == job.sources[s]) return false;
    }
  }
  return true;
}

bool is_cast_type(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}

}  // namespace

std::string no_operation(DType type, ReduceOp op) {
  return std::string(to_string(type)) + " has no " + to_string(op) +
         "; use another operation or convert the data";
}

void reduce(void* const* destinations, int num_destinations, const void* const* sources,
            int num_sources, const ReduceArgs& args) {
  check(num_destinations, num_sources, args);
  ReduceArgs known = args;
  if (args.dtype == DType::kBool) {
    known.dtype = DType::kU8;
    known.op = bool_op(args.op);
  }
  internal::ReduceJob job{destinations, num_destinations, sources, num_sources, &known, false};
  job.stream = may_stream(job);
  internal::level().reduce(job);
}

void cast(void* destination, DType to, const void* source, DType from, std::int64_t count) {
  WEFT_REQUIRE(is_cast_type(to) && is_cast_type(from),
               std::string("cast: from ") + to_string(from) + " to " + to_string(to) +
                   "; only float32, float16 and bfloat16 convert");
  if (count <= 0) return;
  if (to == from) {
    std::memcpy(destination, source, static_cast<std::size_t>(count) * size_of(to));
    return;
  }
  internal::level().cast(destination, to, source, from, count);
}

void stream_copy(void* destination, const void* source, std::int64_t bytes) {
  if (bytes > 0) internal::level().stream_copy(destination, source, bytes);
}

bool is_within(const float* values, std::int64_t count, float limit) {
  return internal::level().is_within(values, count, limit);
}

double sum_of_squares(const float* values, std::int64_t count) {
  return internal::level().sum_of_squares(values, count);
}

void scale(float* destination, std::int64_t count, float factor) {
  internal::level().scale(destination, count, factor);
}

}  // namespace weft::kernels
