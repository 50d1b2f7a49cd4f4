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

  // The first rank's become everybody's: a broadcast for each element type. Collective.
  void take_first(const Group& group);

  // By micro-shards: each begins with the statistics of the step's start, and the step ends with
  // their mean over all that had samples, added along the balanced binary tree over them, so that
  // the bits do not depend on who had which.
  //   begin(4); for each: restore(); forward; take(i, rows);  finish(replicas, …)
  void begin(int leaves);
  void restore();
  void take(int leaf, bool has_samples);
  // Collective over `replicas`, which have a subtree each. `counted`: micro-shards with samples, of
  // all replicas.
  void finish(const Group& replicas, double counted);

 private:
  using Tensors = std::vector<at::Tensor>;  // by floating buffer; undefined counts as zero

  std::vector<Named> buffers_;
  Tensors floating_, counters_;
  Tensors start_, counters_start_, counters_end_;
  int leaves_ = 0;
  std::map<std::pair<int, int>, Tensors> waiting_;  // subtrees, by leaves in it and which
  Tensors sum_;
};

// A block computed again in backward leaves its buffers as they were.
KeepState keep_buffers(const Block& block);

}  // namespace weft::parallel::internal
