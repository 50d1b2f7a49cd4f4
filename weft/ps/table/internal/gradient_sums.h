// The gradients of a push: the keys without repetitions, and the sum of each key's gradients.
//
// All numbers are finite after take(). A key that does not repeat costs no copy. For one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::ps::internal {

class GradientSums {
 public:
  // `width`: floats of a gradient.
  explicit GradientSums(std::size_t width) : width_(width) {}

  // The gradients of these keys, one after the other, which stay while gradient() is used. Throws
  // Error(kInvalidArgument) that names the key if a number or a sum is NaN or infinite.
  void take(std::span<const std::uint64_t> keys, std::span<const float> gradients);
  // In the order of their first places.
  std::span<const std::uint64_t> keys() const { return unique_; }
  // The sum of the gradients of the key with this number in keys().
  const float* gradient(std::size_t number) const {
    const std::uint32_t first = firsts_[number], sum = sum_of_[first];
    return sum > 0 ? sums_.data() + (sum - 1) * width_ : gradients_.data() + first * width_;
  }

 private:
  void check_finite(std::span<const std::uint64_t> keys) const;
  void check_sums(std::span<const std::uint64_t> keys) const;
  void add(std::uint32_t first, std::uint32_t at);

  std::size_t width_;
  std::span<const float> gradients_;
  std::vector<std::uint64_t> unique_;
  std::vector<std::uint32_t> firsts_;  // First place of each of them.
  std::vector<std::uint32_t> places_;  // Hash table: 1 + place of a key, or 0.
  std::vector<std::uint32_t>
      sum_of_;  // By first place: 1 + number of the sum; 0: the key is alone.
  std::vector<float> sums_;
};

}  // namespace weft::ps::internal
