#include "weft/ps/table/internal/gradient_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "weft/base/error.h"
#include "weft/ps/table/internal/key_index.h"

namespace weft::ps::internal {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000;  // Bits of a float's infinity; NaNs are above.

// The largest bits of the absolute values. A loop over integers is vectorized, one that compares
// floats is not.
std::uint32_t largest_bits(std::span<const float> values) {
  std::int32_t most = 0;
  for (const float value : values)
    most = std::max(most, std::bit_cast<std::int32_t>(value) & 0x7fffffff);
  return static_cast<std::uint32_t>(most);
}

[[noreturn]] void refuse(const char* what, std::uint64_t key, float value, std::size_t element) {
  throw Error(Errc::kInvalidArgument,
              std::string("push: ") + what + " of key " + std::to_string(key) + " is " +
                  (std::isnan(value) ? "NaN" : "infinite") + " at element " +
                  std::to_string(element) + "; no row was changed");
}

}  // namespace

void GradientSums::check_finite(std::span<const std::uint64_t> keys) const {
  if (largest_bits(gradients_) < kInfinity) return;
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (!std::isfinite(gradients_[i]))
      refuse("the gradient", keys[i / width_], gradients_[i], i % width_);
  }
}

void GradientSums::check_sums(std::span<const std::uint64_t> keys) const {
  if (largest_bits(sums_) < kInfinity) return;
  for (std::size_t first = 0; first < keys.size(); ++first) {
    for (std::size_t j = 0; sum_of_[first] > 0 && j < width_; ++j) {
      const float sum = sums_[(sum_of_[first] - 1) * width_ + j];
      if (!std::isfinite(sum)) refuse("the sum of the gradients", keys[first], sum, j);
    }
  }
}

void GradientSums::take(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
  gradients_ = gradients;
  check_finite(keys);
  unique_.clear(), firsts_.clear(), sums_.clear();
  sum_of_.assign(keys.size(), 0);
  const std::size_t mask = std::bit_ceil(2 * keys.size()) - 1;
  places_.assign(mask + 1, 0);
  for (std::uint32_t i = 0; i < keys.size(); ++i) {
    std::size_t at = hash_key(keys[i]) & mask;
    while (places_[at] != 0 && keys[places_[at] - 1] != keys[i]) at = (at + 1) & mask;
    if (places_[at] != 0) {
      add(places_[at] - 1, i);
    } else {
      places_[at] = i + 1;
      unique_.push_back(keys[i]);
      firsts_.push_back(i);
    }
  }
  check_sums(keys);
}

void GradientSums::add(std::uint32_t first, std::uint32_t at) {
  if (sum_of_[first] == 0) {
    const auto from = gradients_.subspan(first * width_, width_);
    sums_.insert(sums_.end(), from.begin(), from.end());
    sum_of_[first] = static_cast<std::uint32_t>(sums_.size() / width_);
  }
  float* const sum = sums_.data() + (sum_of_[first] - 1) * width_;
  const float* const more = gradients_.data() + at * width_;
  for (std::size_t j = 0; j < width_; ++j) sum[j] += more[j];
}

}  // namespace weft::ps::internal
