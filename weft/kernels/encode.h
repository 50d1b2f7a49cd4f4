// Kernels of gradient compression over flat memory: quantization to block-scaled integers or signs,
// and products with low-rank matrices.
//
// As in reduce.h, the code is chosen for the processor at run time and gives the same bits with
// every instruction set. Pure functions: any thread may call them. No alignment is needed.
#pragma once

#include <cstdint>

namespace weft::kernels {

// Numbers are divided into blocks. Each block has one scale, and each number has a code of `bits`
// bits:
//   bits   code                  scale
//   8      from -127 to 127      largest magnitude of the block / 127
//   4      from -7 to 7          largest magnitude of the block / 7
//   1      sign                  mean magnitude of the block
// A block with an infinity or NaN gets the scale NaN, so that it is decoded as NaN. If the scale is
// below 1e-36, it becomes 0.
struct QuantizeArgs {
  const float* values = nullptr;
  std::int64_t count = 0;
  std::int64_t block = 64;  // Numbers per block, a multiple of 8.
  int bits = 8;             // 8, 4 or 1.
  float* scales = nullptr;  // Output of scales_of(count, block) elements.
  // Output of codes_of(count, block, bits) bytes. The layout is private to quantize() and
  // dequantize_add().
  std::uint8_t* codes = nullptr;
  // Optional output: values minus decoded values, or 0 in a block that is not finite. May be
  // `values` itself.
  float* residual = nullptr;
  // Round up or down at random, so that the expectation is the value (QSGD), instead of to the
  // nearest. For 8 and 4 bits only. `key` is the seed.
  bool stochastic = false;
  std::uint32_t key = 0;
};
void quantize(const QuantizeArgs& args);

struct DequantizeArgs {
  const float* scales = nullptr;
  const std::uint8_t* codes = nullptr;
  std::int64_t count = 0;
  std::int64_t block = 64;
  int bits = 8;
};
// values[i] += decoded value of code i.
void dequantize_add(const DequantizeArgs& args, float* values);

constexpr std::int64_t scales_of(std::int64_t count, std::int64_t block) {
  return (count + block - 1) / block;
}
constexpr std::int64_t codes_of(std::int64_t count, std::int64_t block, int bits) {
  return count / block * (block * bits / 8) + (count % block * bits + 7) / 8;
}

// Sizes of a row-major matrix [rows, columns] and of its low-rank factors: `rank` vectors of length
// rows (left) and `rank` vectors of length columns (right). Each vector is contiguous.
struct LowRankArgs {
  std::int64_t rows = 0, columns = 0;
  int rank = 1;
};
// left_k[i] = <row i of matrix, right_k>.
void multiply_right(const LowRankArgs& args, const float* matrix, const float* right, float* left);
// right_k = sum over i of left_k[i] * (row i of matrix).
void multiply_left(const LowRankArgs& args, const float* matrix, const float* left, float* right);
// matrix += factor * sum over k of left_k right_k^T.
struct LowRank {
  const float* left = nullptr;
  const float* right = nullptr;
  float factor = 1.0f;
};
void add_low_rank(const LowRankArgs& args, const LowRank& product, float* matrix);

}  // namespace weft::kernels
