// Random draws that depend on a key alone (seed, what for, epoch or part, index), never on the order of calls, the rank or the world.
// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014) started from the mixed key.
#pragma once

#include <cstdint>

namespace weft::data::internal {

enum class Purpose : std::uint64_t { kOrder = 1, kAugment = 2, kShapes = 3 };

class KeyedRandom {
 public:
  struct Key {
    std::uint64_t seed = 0;
    Purpose purpose;
    std::uint64_t major = 0;
    std::uint64_t minor = 0;
  };

  explicit KeyedRandom(Key key)
      : state_(mix(mix(mix(mix(key.seed + kGamma) ^ static_cast<std::uint64_t>(key.purpose)) + key.major) + key.minor)) {}

  std::uint64_t next() { return mix(state_ += kGamma); }

  // Uniform in [0, n), without bias (Lemire, Fast Random Integer Generation in an Interval, 2019).
  std::uint64_t below(std::uint64_t n) {
    unsigned __int128 product = static_cast<unsigned __int128>(next()) * n;
    if (static_cast<std::uint64_t>(product) < n) {
      const std::uint64_t threshold = -n % n;
      while (static_cast<std::uint64_t>(product) < threshold) product = static_cast<unsigned __int128>(next()) * n;
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  // Uniform in [low, high).
  double between(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  static constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15;

  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  std::uint64_t state_;
};

}  // namespace weft::data::internal
