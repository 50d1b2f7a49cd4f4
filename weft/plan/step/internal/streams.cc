#include "weft/plan/step/internal/streams.h"

#include <algorithm>

namespace weft::plan::internal {

Streams play_streams(const std::vector<StreamBlock>& blocks, bool ahead, double interference) {
  double compute = 0, communication = 0;
  std::vector<double> gathered(blocks.size(), 0);
  const auto gather = [&](std::size_t i, double issued) {
    if (i >= blocks.size() || blocks[i].gather <= 0) return;
    communication = std::max(communication, issued) + blocks[i].gather;
    gathered[i] = communication;
  };
  gather(0, 0);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!ahead && i > 0) gather(i, compute);
    const double start = std::max(compute, gathered[i]);
    if (ahead) gather(i + 1, start);
    // The overlap with the collectives that were issued before.
    const double overlap = std::clamp(communication - start, 0.0, blocks[i].compute);
    compute = start + blocks[i].compute + overlap * interference;
    if (blocks[i].reduce > 0) communication = std::max(communication, compute) + blocks[i].reduce;
  }
  return {compute, std::max(compute, communication)};
}

}  // namespace weft::plan::internal
