// Where the blocks are cut into stages.
#pragma once

#include <functional>
#include <vector>

#include "weft/comm/group.h"
#include "weft/parallel/pipeline/pipeline.h"

namespace weft::parallel::internal {

// options.cuts checked; else by the times of all blocks, taken on rank 0 and told to all; else
// equally many blocks. Collective.
std::vector<int> cuts_of(const Group& group, int num_blocks, int stages,
                         const std::function<Block(int)>& make, const PipelineOptions& options);

}  // namespace weft::parallel::internal
