// Running statistics (buffers) of a stage's blocks, over replicas and micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/block.h"
#include "weft/parallel/recompute/recompute.h"

namespace weft::parallel::internal {

class Statistics {
 public:
  struct Named {
    std::string name;  // in the whole model
    at::Tensor tensor;
  };

  Statistics() = default;
  explicit Statistics(std::vector<Named> buffers);

  bool empty() const { return buffers_.empty(); }
  const std::vector<Named>& buffers() const { return buffers_; }

  // Copies the first rank's statistics to all ranks: one broadcast per element type. Collective.
  void take_first(const Group& group);

  // For a step that may be skipped: keeps the statistics of its start, and sets them back.
  void begin_step();
  void undo_step();

  // With micro-shards, each begins with the statistics at the start of the batch. The batch ends
  // with the mean over all micro-shards that had samples. It is summed along the balanced binary
  // tree over them, so that the bits do not depend on the placement of micro-shards.
  //   begin(4); for each: restore(); forward; take(i, rows);  finish(replicas, …)
  void begin(int leaves);
  void restore();
  void take(int leaf, bool has_samples);
  // Collective over `replicas`, each of which has a subtree. `counted`: number of micro-shards with
  // samples, of all replicas.
  void finish(const Group& replicas, double counted);

 private:
  using Tensors = std::vector<at::Tensor>;  // by floating buffer; undefined counts as zero

  std::vector<Named> buffers_;
  Tensors floating_, counters_;
  Tensors step_start_;  // of all buffers
  Tensors start_, counters_start_, counters_end_;
  int leaves_ = 0;
  std::map<std::pair<int, int>, Tensors> waiting_;  // subtrees, by leaves in it and which
  Tensors sum_;
};

// Recomputing a block in backward runs in the modes of forward.
PreserveState preserve_modes(const engine::Block& block);

}  // namespace weft::parallel::internal
