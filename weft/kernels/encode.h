// Loops of gradient compression over flat memory: block-scaled integers and signs, and products
// with thin matrices.
//
// As in reduce.h: chosen for the processor at run time, the same bits at every instruction set,
// pure, any thread, no alignment needed.
#pragma once

#include <cstdint>

namespace weft::kernels {

// Numbers are cut into blocks; each block has one scale and, for each number, a code of `bits`
// bits.
//   8, 4   code in [-127, 127], [-7, 7]; scale: the largest magnitude of the block over 127, 7
//   1      the sign; scale: the mean magnitude of the block
// A block that holds an infinity or NaN gets the scale NaN, so that the damage shows where it is
// decoded.
struct QuantizeArgs {
  const float* values = nullptr;
  std::int64_t count = 0;
  std::int64_t block = 64;  // numbers, a multiple of 8
  int bits = 8;             // 8, 4 or 1
  float* scales = nullptr;  // scales_of(count, block) of them
  // codes_of(count, block, bits) bytes; the layout is quantize's own.
  std::uint8_t* codes = nullptr;
  // Optional: values minus what their codes stand for (0 in a block that is not finite). May be
  // `values` itself.
  float* residual = nullptr;
  // 8 and 4 bits: round up or down at random, so that the expectation is the value (QSGD), instead
  // of to the nearest. `key` picks the random numbers.
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
// values[i] += what code i stands for.
void dequantize_add(const DequantizeArgs& args, float* values);

constexpr std::int64_t scales_of(std::int64_t count, std::int64_t block) {
  return (count + block - 1) / block;
}
constexpr std::int64_t codes_of(std::int64_t count, std::int64_t block, int bits) {
  return count / block * (block * bits / 8) + (count % block * bits + 7) / 8;
}

// A matrix of rows x columns, row-major, beside `rank` vectors of length rows (left) and as many of
// length columns (right), each vector contiguous.
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
