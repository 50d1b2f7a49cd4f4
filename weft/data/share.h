// The samples of one rank in one batch: a Sampler chooses them, a Source loads them.
#pragma once

#include <cstdint>
#include <vector>

namespace weft::data {

// One rank's part of one global batch.
struct Share {
  std::vector<std::int64_t> indices;  // may be empty in a training batch smaller than the world
  std::int64_t epoch = 0;
  std::int64_t first = 0;        // where the share starts in the epoch's order
  std::int64_t global_size = 0;  // samples of the batch over all ranks (kSequential: of this block)
};

}  // namespace weft::data
