// Measures the blocks of a task: forward, backward and bytes of each, on all ranks at once.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/parallel/compose/plan.h"
#include "weft/plan/model/profile.h"
#include "weft/train/task.h"

namespace weft::train::internal {

struct BlockTimesOptions {
  std::vector<std::int64_t> batches = {1, 4};  // Samples of each measurement, ascending.
  parallel::Precision precision = parallel::Precision::kAsItIs;
  int runs = 5;  // Of each measurement, after one that warms up. The median counts.
  std::string name;
  std::int64_t tokens = 0;  // Of a sample. 0: images.
  // Where ranks share processors, they take turns: as many at once as there are processors
  // (machine_rates.h). `turn`: of this rank.
  int turn = 0, turns = 1;
  // The most seconds and bytes of a block on any rank. Larger numbers of samples are not measured.
  // The smallest one is measured in any case.
  double most_seconds = std::numeric_limits<double>::infinity();
  double most_bytes = std::numeric_limits<double>::infinity();
};

// Every rank measures every block, undivided, at the same time as the others of its turn, so that
// memory is shared as in training. The result is the mean over the ranks, the same on all. The loss
// counts with the last block. A block like one before it (the same types, parameters and inputs)
// has its times. Keeps one block at a time. Collective; throws what the task throws.
plan::Profile time_blocks(const Task& task, const Group& world, const BlockTimesOptions& options);

}  // namespace weft::train::internal
