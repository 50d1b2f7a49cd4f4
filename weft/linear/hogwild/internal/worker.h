// One worker of Hogwild!: the loop over its rows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "weft/linear/data/row_order.h"
#include "weft/linear/hogwild/hogwild.h"
#include "weft/linear/hogwild/internal/shared_weights.h"

namespace weft::linear::internal {

struct Worker {
  const SparseRows* rows = nullptr;
  std::span<const double> targets;
  std::size_t first_row = 0;  // The worker's rows: this one and those of `order`.
  RowOrder order;
  int cluster = 0;
  bool leads = false;  // Exchanges for its cluster.
  // Called every 64 rows with the number of rows visited since the last call. May be empty.
  std::function<void(std::int64_t rows)> between;
};

// What all workers of a rank share in an epoch.
struct EpochOptions {
  Loss loss = Loss::kLogistic;
  Locks locks = Locks::kNone;
  float step = 0;                 // η
  std::span<const float> shrink;  // 1 / (1 + η l2 n / n_j) by column.
};

// Visits the worker's rows once, in the order of this epoch.
void run_epoch(Worker& worker, std::uint64_t epoch, const EpochOptions& options,
               const SharedWeights& shared);

}  // namespace weft::linear::internal
