// Site: where the ranks of one pipeline rank run: their device and the groups of each axis.
#pragma once

#include <vector>

#include "weft/plan/cost/collectives.h"
#include "weft/plan/step/step.h"

namespace weft::plan::internal {

struct Site {
  int first_rank = 0;   // Of the cluster: the rank with coordinate 0 along tp, cp and ep.
  int accelerator = 0;  // Slowest device of the ranks that work together.
  double memory = 0;    // Bytes of their smallest device, which may be a faster one.
  GroupShape tensor, context, expert;
  GroupShape shards;       // Over which ZeRO shards.
  GroupShape replicas;     // Over which whole gradients, or gradients of shards, are reduced.
  GroupShape expert_data;  // Over which gradients of experts are reduced.
  bool operator==(const Site&) const = default;
};

// Number of ranks that share one copy of weights or state by the layout's ZeRO stage.
int shard_ranks(const Job& job);

// The site of pipeline rank `stage_rank` in the replica of coordinate `replica` along dp.
Site site_of(const Job& job, int stage_rank, int replica);

}  // namespace weft::plan::internal
