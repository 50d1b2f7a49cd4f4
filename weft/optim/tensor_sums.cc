#include "weft/optim/tensor_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "weft/kernels/reduce.h"

namespace weft::optim {
namespace {

constexpr int kLowest = 352;  // 2^-352 is the lowest bit of the first limb
constexpr std::int64_t kBase = std::int64_t{1} << 32;
constexpr double kLargest = 0x1p352;

}  // namespace

TensorSums::TensorSums(std::size_t count, bool exact) : count_(count), exact_(exact) {
  if (exact) {
    integers_.assign(count * width(), 0);
  } else {
    doubles_.assign(count, 0);
  }
}

// x is mantissa * 2^(exponent - 1075). The mantissa's bits go to three limbs.
void TensorSums::add_to(std::int64_t* limbs, double x) {
  if (!(x < kLargest)) {
    ++limbs[kLimbs];
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const int exponent = static_cast<int>(bits >> 52);
  int position = exponent - 1075 + kLowest;
  std::uint64_t mantissa = (bits & ((std::uint64_t{1} << 52) - 1)) | (std::uint64_t{1} << 52);
  if (position < 0) {
    if (position <= -53) return;
    mantissa >>= -position;
    position = 0;
  }
  const int limb = position / 32, shift = position % 32;
  const std::uint64_t low = (mantissa & 0xffffffff) << shift,
                      high = ((mantissa >> 32) << shift) + (low >> 32);
  limbs[limb] += static_cast<std::int64_t>(low & 0xffffffff);
  limbs[limb + 1] += static_cast<std::int64_t>(high & 0xffffffff);
  limbs[limb + 2] += static_cast<std::int64_t>(high >> 32);
}

void TensorSums::carry(std::int64_t* limbs) {
  for (std::size_t i = 0; i + 1 < kLimbs; ++i) {
    limbs[i + 1] += limbs[i] / kBase;
    limbs[i] %= kBase;
  }
}

void TensorSums::add(std::size_t sum, double x) {
  if (exact_) {
    add_to(integers(sum), x);
  } else {
    doubles_[sum] += x;
  }
}

template <class Number>
void TensorSums::add_exact_squares(std::size_t sum, const Number* values, std::int64_t count) {
  constexpr std::int64_t kPart = std::int64_t{1} << 20;  // additions without a carry
  std::int64_t* const limbs = integers(sum);
  for (std::int64_t begin = 0; begin < count; begin += kPart) {
    const std::int64_t end = std::min(count, begin + kPart);
    for (std::int64_t i = begin; i < end; ++i) {
      const auto x = static_cast<double>(values[i]);
      add_to(limbs, x * x);
    }
    carry(limbs);
  }
}

void TensorSums::add_squares(std::size_t sum, const float* values, std::int64_t count) {
  if (exact_) return add_exact_squares(sum, values, count);
  doubles_[sum] += kernels::sum_of_squares(values, count);
}

void TensorSums::add_squares(std::size_t sum, const double* values, std::int64_t count) {
  if (exact_) return add_exact_squares(sum, values, count);
  double squares = 0;
  for (std::int64_t i = 0; i < count; ++i) squares += values[i] * values[i];
  doubles_[sum] += squares;
}

template <class Number>
void TensorSums::add_each(std::size_t first, const Number* values, std::int64_t count) {
  double* const into = exact_ ? nullptr : doubles(first);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(values[i]);
    if (into != nullptr) {
      into[i] += x * x;
    } else {
      add_to(integers(first + static_cast<std::size_t>(i)), x * x);
    }
  }
}

void TensorSums::add_each_square(std::size_t first, const float* values, std::int64_t count) {
  add_each(first, values, count);
}

void TensorSums::add_each_square(std::size_t first, const double* values, std::int64_t count) {
  add_each(first, values, count);
}

// After carrying, equal sums have equal limbs.
double TensorSums::value(std::size_t sum) const {
  if (!exact_) return doubles_[sum];
  std::int64_t limbs[kLimbs + 1];
  std::copy_n(integers_.data() + sum * width(), kLimbs + 1, limbs);
  if (limbs[kLimbs] > 0) return std::numeric_limits<double>::quiet_NaN();
  carry(limbs);
  double total = 0;
  for (std::size_t i = kLimbs; i-- > 0;)
    total += std::ldexp(static_cast<double>(limbs[i]), 32 * static_cast<int>(i) - kLowest);
  return total;
}

}  // namespace weft::optim
