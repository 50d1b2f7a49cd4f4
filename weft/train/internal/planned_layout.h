// A layout that a plan has chosen, with its prediction: as keys of a recipe, as text between ranks,
// and tried out by real steps.
#pragma once

#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/train/internal/plan_watch.h"
#include "weft/train/internal/probe.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train::internal {

// A layout with its prediction. The same on all ranks.
struct PlannedLayout {
  std::string layout;  // "pp 2 x dp 4, 1f1b, micro-batch 2".
  std::string keys;    // Its keys, as a fragment of a recipe.
  std::string codec = "none";
  int ranks = 0;       // Number of ranks that it is for.
  double seconds = 0;  // Of a step, predicted: by real steps where it was tried, else the model's.
  double model_seconds = 0;  // Of a step, by the model alone.
  double memory =
      0;  // Bytes of a process at its peak (observe::memory_share()): the mean over the ranks.
  double traffic = 0;  // Bytes that a rank sends in a step: the mean.
  int tried = 0;       // Layouts that were tried. 0: the model alone has chosen.
  bool is_tried = false;
  StepParts parts;  // Expected, for PlanWatch.
};
// Replaces the predictions by what real steps have shown. Memory stays as predicted, since a run
// also copies its state to save it.
void use_measured(PlannedLayout& planned, const ProbedStep& real);
// The fastest of layouts that were tried. One with batches by speed must be 5 % faster than the
// others, since it makes runs differ. `codecs`: the codecs that the plan chooses from, in the order
// of rising error; empty if it does not choose. A layout with one of them must be 5 % faster than
// all without, and 10 % faster than all with a codec of smaller error.
PlannedLayout best_of(const std::vector<PlannedLayout>& tried,
                      const std::vector<std::string>& codecs);
std::string to_json(const PlannedLayout& planned);
// Inverse. Throws Error(kInternal) for any other text.
PlannedLayout planned_layout(const std::string& json);

// Sets mesh, micro-batches, schedule, sharding, recomputation and balance by a fragment of a
// recipe.
void set_plan(Options& options, const std::string& fragment);

// Real steps of a layout, for which `options` get its keys. Collective.
ProbedStep try_out(const PlannedLayout& planned, const Task& task, Options options,
                   const Group& world, const ProbeOptions& how = {});

// All ranks as replicas, without a prediction.
PlannedLayout all_replicas(int ranks);

}  // namespace weft::train::internal
