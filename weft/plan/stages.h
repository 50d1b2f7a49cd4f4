// Where to cut a model into the stages of a pipeline: contiguous runs of blocks, so that the
// slowest stage is as fast as can be.
//
// A pipeline goes at the pace of its slowest stage, so that this is what counts; the plan is the
// best one there is, not a greedy one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::plan {

// A part of the model that is not cut, for one micro-batch.
struct Block {
  double seconds = 0;       // forward and backward
  std::int64_t memory = 0;  // bytes of weights and activations that the stage keeps
  std::int64_t boundary_bytes =
      // of its output, which goes to the next stage where the model is cut behind it, and comes
      // back as gradient
      0;
};

struct StageLimits {
  int stages = 1;
  std::optional<std::int64_t> memory;  // bytes of a stage
  // Bytes a second between stages. A stage takes what its blocks take, and boundary_bytes /
  // bandwidth for each border that it has, in each direction; none: messages are hidden behind the
  // computation.
  std::optional<double> bandwidth;
};

struct StagePlan {
  // The first block of each stage but the first: stage s has blocks [cuts[s-1], cuts[s]).
  std::vector<int> cuts;
  std::vector<double> seconds;       // by stage
  std::vector<std::int64_t> memory;  // by stage, bytes
  double slowest = 0;                // seconds
  std::int64_t boundary_bytes = 0;   // that cross the cuts in one direction
  std::string reason;                // one line: what limits it
};

// The partition whose slowest stage takes least; of those one whose cuts carry the fewest bytes; of
// those the one whose first cuts are the latest. Dynamic programming over (stages, blocks):
// O(stages * blocks^2), 8 stages of 1000 blocks take some milliseconds. Throws
// Error(kInvalidArgument) for negative or infinite numbers, and where there is no plan, naming the
// nearest that there is: "5 stages of 4 blocks; use 4 or fewer", "2 stages of at most 10 bytes
// cannot hold the model (25 bytes); use 3 stages", "block 1 alone takes 12 bytes".
StagePlan cut_stages(std::span<const Block> blocks, const StageLimits& limits);

}  // namespace weft::plan
