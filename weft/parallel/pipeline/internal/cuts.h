// Cuts the blocks into stages.
#pragma once

#include <functional>
#include <vector>

#include "weft/comm/group.h"
#include "weft/parallel/pipeline/pipeline.h"

namespace weft::parallel::internal {

// Returns options.cuts after a check. Otherwise cuts by the times of all blocks, measured on rank 0
// and broadcast. Without a sample: equal numbers of blocks. Collective.
std::vector<int> cuts_of(const Group& group, int num_blocks, int stages,
                         const std::function<Block(int)>& make, const PipelineOptions& options);

}  // namespace weft::parallel::internal
