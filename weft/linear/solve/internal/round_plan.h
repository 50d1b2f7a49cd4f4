// How a pass over the data is divided into rounds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace weft::linear::internal {

struct RoundPlan {
  std::int64_t rounds = 1;  // Rounds of a pass.
  int repeats = 1;          // Passes in a round.

  // Passes that so many rounds make.
  double passes(std::int64_t done) const {
    return static_cast<double>(done * repeats) / static_cast<double>(rounds);
  }
  // Part `place` of `count` items: [first, last).
  std::size_t begin(std::size_t count, std::int64_t place) const {
    return count * static_cast<std::size_t>(place) / static_cast<std::size_t>(rounds);
  }
};

// A plan of about `passes` passes a round, at most 64 rounds a pass.
inline RoundPlan plan_rounds(double passes) {
  constexpr double kMaxRounds = 64;
  return {static_cast<std::int64_t>(std::clamp(std::round(1 / passes), 1.0, kMaxRounds)),
          static_cast<int>(std::max(1.0, std::round(passes)))};
}

// Passes a round, so that the sum of `elements` float64 over the ranks takes about a tenth of the
// time of the work on this rank's `entries`.
inline double balanced_passes(double elements, double entries, bool in_memory) {
  constexpr double kInMemory = 16, kOverNetwork = 256;
  return (in_memory ? kInMemory : kOverNetwork) * elements / std::max(1.0, entries);
}

}  // namespace weft::linear::internal
