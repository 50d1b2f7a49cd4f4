// Options of Hogwild!: hogwild().
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "weft/linear/solve/objective.h"

namespace weft::linear {

enum class Locks { kNone, kRows, kColumns };

// "none", "rows" or "columns". Throws Error(kInvalidArgument), naming these, for any other name.
Locks parse_locks(std::string_view name);

// State after an epoch.
struct Epoch {
  std::int64_t epoch = 0;  // From 1.
  double objective = 0;    // P(w) of the mean of all clusters' weights.
  double seconds = 0;      // Of the updates of all epochs so far, without evaluations.
  std::uint64_t exchanged_bytes = 0;
};

struct HogwildOptions {
  int threads = 1;  // Of each rank.
  Locks locks = Locks::kNone;
  // Workers that share one copy of the weights. 0: all of a host.
  int cluster_size = 1;
  // Rows that a cluster visits between its exchange and the next cluster's. 0: so many that an
  // exchange takes about 3 % of the time, but at least 8 turns of the token an epoch.
  std::int64_t exchange_rows = 0;
  std::int64_t epochs = 10;
  double step = 1, decay = 0.8;
  std::uint64_t seed = 1;
  // Called after each epoch. If no rank has it, the objective is computed only at the end, which
  // saves about a third of the time.
  std::function<void(const Epoch&)> on_epoch;
};

// Throws Error(kInvalidArgument) for l1, and if an option is out of range.
void check(const Objective& objective, const HogwildOptions& options);

}  // namespace weft::linear
