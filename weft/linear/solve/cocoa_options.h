// Options of CoCoA: cocoa() and prox_cocoa().
#pragma once

#include <cstdint>

#include "weft/linear/solve/rounds.h"

namespace weft::linear {

enum class Aggregation { kAdding, kAveraging };
enum class Sigma { kMeasured, kSafe };

struct CocoaOptions {
  Aggregation aggregation = Aggregation::kAdding;
  Sigma sigma = Sigma::kMeasured;  // For kAdding.
  // σ' itself, instead of `sigma`. Below γ K, nothing guarantees progress. 0: not given.
  double fixed_sigma = 0;
  // Passes of a rank over its rows in a round; below 1, a round visits that part of them. 0: one
  // pass with one rank. With several, so many entries that the all-reduce takes about a tenth of
  // the time: 16 for each weight in shared memory, 256 over a network.
  double local_passes = 0;
  // Passes between certificates. 0: decided by the estimate, at most 10.
  std::int64_t certificate_every = 0;
  StopRule stop;
  std::uint64_t seed = 1;
  OnRound on_round;  // Called after each round.
};

// Throws Error(kInvalidArgument) if an option is out of range.
void check(const CocoaOptions& options);

}  // namespace weft::linear
