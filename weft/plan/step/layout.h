// Layout: how a model's training step is divided over ranks: the plan that is predicted, searched
// for and trained with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/plan/mesh/mesh.h"
#include "weft/plan/model/blocks.h"
#include "weft/schedule/pipeline/pipeline.h"

namespace weft::plan {

enum class Recompute : std::uint8_t { kNone, kSelective, kFull };
const char* to_string(Recompute recompute);
// "none", "selective", "full"; "0", "1", "true", "false" too. Throws Error(kInvalidArgument).
Recompute parse_recompute(std::string_view name);

// How the replicas of dp train together (weft/strategy). "sync" adds their gradients at every step.
// With another rule they exchange weights after every `period` steps: local_sgd, slow_momentum,
// diloco, easgd.
struct Rule {
  std::string name = "sync";
  int period = 1;
  bool is_sync() const { return name == "sync"; }
  bool operator==(const Rule&) const = default;
};
// "sync", "local_sgd:16".
std::string to_string(const Rule& rule);
// Throws Error(kInvalidArgument) for another name, and for a rule without a period.
Rule parse_rule(const std::string& text);
// Arrays of float32 of the weights' size that a rule keeps besides weights and optimizer state, and
// the one that it exchanges. 0 for sync.
int arrays_of(const Rule& rule);

// Axes as in a recipe: the number of replicas is dp * fsdp * ep. Ranks lie in the order pp, dp,
// fsdp, ep, cp, tp: those of tp are neighbors.
struct Layout {
  int dp = 1, fsdp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
  bool sequence_parallel = false;
  // ZeRO stage of fsdp, or of dp if fsdp is 1. 0: nothing is sharded.
  int zero_stage = 0;
  schedule::pipeline::Algorithm schedule = schedule::pipeline::Algorithm::kOneForwardOneBackward;
  int virtual_stages = 1;
  int micro_batch = 1;            // Samples.
  std::int64_t global_batch = 1;  // Samples of a step.
  Recompute recompute = Recompute::kNone;
  Precision precision = Precision::kBf16;
  // First block of each stage except the first, in blocks_of(). Empty: cut by the software's rule.
  std::vector<int> cuts;
  Rule rule;
  std::string codec = "none";  // Of what replicas exchange.
  // Samples of a micro-batch of each replica of dp, relative to their mean. The ranks of fsdp and
  // ep then divide those of their replica by speed. Empty: equal.
  std::vector<double> shares;
  bool operator==(const Layout&) const = default;
};

int world_of(const Layout& layout);
int replicas_of(const Layout& layout);
// Micro-batches of a replica: global_batch / (micro_batch * replicas), rounded up.
int micro_batches_of(const Layout& layout);
// The axes of the layout as a mesh.
std::vector<Axis> axes_of(const Layout& layout);
// "dp 2 x tp 4, 1f1b" with micro-batch, ZeRO and recomputation where they matter.
std::string describe(const Layout& layout);

// Bytes of a compressed gradient over its bytes in float32: 0.5 for bf16, 1 for none
// (weft/compress). Throws Error(kInvalidArgument) for an unknown codec, and for threshold, whose
// bytes depend on the gradients.
double codec_ratio(const std::string& codec);

// Throws Error(kInvalidArgument), naming the nearest layout that works, if sizes are below 1, do
// not multiply to `world`, leave a replica without samples, or do not fit the schedule.
void check(const Layout& layout, int world);

}  // namespace weft::plan
