// What StepCache holds.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "weft/plan/step/internal/replica.h"

namespace weft::plan {

struct StepCache::Content {
  // By micro-batch, tp, cp, ep and sequence parallelism.
  using SplitKey = std::tuple<double, int, int, int, bool>;
  std::map<SplitKey, Blocks> blocks;
  // Ranks, nodes, per_node, sharing, intra. In nodes of one type, groups differ in nothing else.
  // The pairs of a cube mesh have one or two links.
  using GroupKey = std::tuple<int, int, int, int, double>;
  // By block, accelerator, and the groups of tp, cp, ep and of the shards of ZeRO-3.
  using CostKey = std::tuple<const ModelBlock*, int, GroupKey, GroupKey, GroupKey, GroupKey>;
  std::map<CostKey, internal::BlockCost> costs;
  // First blocks of stages, by the first block of the model, accelerator, recomputation and stages.
  std::map<std::tuple<const ModelBlock*, int, Recompute, int>, std::vector<int>> cuts;
};

}  // namespace weft::plan
