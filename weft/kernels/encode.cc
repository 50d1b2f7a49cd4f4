#include "weft/kernels/encode.h"

#include <string>

#include "weft/base/error.h"
#include "weft/kernels/internal/level.h"

namespace weft::kernels {
namespace {

void check(std::int64_t count, std::int64_t block, int bits) {
  WEFT_REQUIRE(count >= 0 && block >= 8 && block % 8 == 0,
               "quantize: the block size must be a multiple of 8, not " + std::to_string(block) +
                   "; the count must not be negative");
  WEFT_REQUIRE(bits == 8 || bits == 4 || bits == 1,
               "quantize: codes must have 8, 4 or 1 bits, not " + std::to_string(bits));
}

}  // namespace

void quantize(const QuantizeArgs& args) {
  check(args.count, args.block, args.bits);
  WEFT_REQUIRE(!(args.stochastic && args.bits == 1),
               "quantize: signs cannot be rounded at random; use 8 or 4 bits");
  internal::level().quantize(args);
}

void dequantize_add(const DequantizeArgs& args, float* values) {
  check(args.count, args.block, args.bits);
  internal::level().dequantize_add(args, values);
}

void multiply_right(const LowRankArgs& args, const float* matrix, const float* right, float* left) {
  internal::level().multiply_right(args, matrix, right, left);
}

void multiply_left(const LowRankArgs& args, const float* matrix, const float* left, float* right) {
  internal::level().multiply_left(args, matrix, left, right);
}

void add_low_rank(const LowRankArgs& args, const LowRank& product, float* matrix) {
  internal::level().add_low_rank(args, product, matrix);
}

}  // namespace weft::kernels
