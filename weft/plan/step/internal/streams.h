// Plays two streams of one rank, computation and communication, block by block.
#pragma once

#include <vector>

namespace weft::plan::internal {

// A block in the order in which an action computes it.
struct StreamBlock {
  double compute = 0;  // Seconds.
  double gather = 0;   // Collective that must end before the block is computed; 0: none.
  double reduce = 0;   // Collective that can start when the block is computed; 0: none.
};

struct Streams {
  double compute_end = 0;  // End of the computation.
  double end = 0;          // End of both.
};

// Gathers are issued one block ahead (`ahead`), or when the block is needed. Collectives run one
// after the other, in the order of their issue. While one runs, computation is slower by the share
// `interference`: collectives occupy some of the device's units.
Streams play_streams(const std::vector<StreamBlock>& blocks, bool ahead, double interference);

}  // namespace weft::plan::internal
