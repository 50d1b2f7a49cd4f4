// Cuts a model into the stages of a pipeline: contiguous runs of blocks, so that the slowest stage
// is as fast as possible.
//
// A pipeline runs at the pace of its slowest stage. The plan is the best one possible, not a greedy
// one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::plan {

// Part of the model that is not cut. Its costs are those of one micro-batch.
struct Block {
  double seconds = 0;       // Time of forward and backward.
  std::int64_t memory = 0;  // Bytes of weights and activations that the stage keeps.
  // Bytes of its output. If the model is cut behind the block, the output goes to the next stage,
  // and a gradient of the same size comes back.
  std::int64_t boundary_bytes = 0;
};

struct StageLimits {
  int stages = 1;
  std::optional<std::int64_t> memory;  // Most bytes of a stage; none: no limit.
  // Bytes/s between stages. A stage takes the time of its blocks, plus boundary_bytes / bandwidth
  // for each of its borders, in each direction. None: messages are hidden behind computation.
  std::optional<double> bandwidth;
};

struct StagePlan {
  // First block of each stage except the first: stage s has blocks [cuts[s-1], cuts[s]).
  std::vector<int> cuts;
  std::vector<double> seconds;       // Time of each stage.
  std::vector<std::int64_t> memory;  // Bytes of each stage.
  double slowest = 0;                // Time of the slowest stage.
  std::int64_t boundary_bytes = 0;   // Bytes that cross the cuts in one direction.
  std::string reason;                // One line that says what limits the plan.
};

// Returns the partition whose slowest stage takes the least time. Among these it prefers the fewest
// bytes across the cuts, then the latest first cuts. Dynamic programming over (stages, blocks)
// takes O(stages * blocks^2): 8 stages of 1000 blocks take some milliseconds. Throws
// Error(kInvalidArgument) for negative or infinite numbers. Also throws it if there is no plan,
// naming the nearest one: "5 stages of 4 blocks; use 4 or fewer", "2 stages of at most 10 bytes
// cannot hold the model (25 bytes); use 3 stages", "block 1 alone takes 12 bytes".
StagePlan cut_stages(std::span<const Block> blocks, const StageLimits& limits);

}  // namespace weft::plan
