// The samples of one rank in one batch: a Sampler chooses them, a Source loads them.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::data {

// One rank's part of one global batch.
struct Share {
  // Numbers of the samples. May be empty in a training batch smaller than the world.
  std::vector<std::int64_t> indices;
  std::int64_t epoch = 0;
  // Position of the share's first sample in the epoch's order. Without samples, that of the batch's
  // first sample.
  std::int64_t first = 0;
  // Samples of the batch over all ranks (kSequential: of this block).
  std::int64_t global_size = 0;
  // Samples of the batch over the ranks of this rank's group (SamplerOptions::group).
  std::int64_t group_size = 0;
};

}  // namespace weft::data
