// Plans a run at its start, on the machines that its ranks run on: for parallel.plan = "auto" and
// "predict", and Options::mesh = "auto".
//
//   measure()  matrix products, links, blocks; then real steps of the layout with replicas alone
//      │
//   choose()   rank 0 searches (plan/search); all ranks try the best layouts for some real steps
//      │
//   again()    the same measurements, another number of ranks or slower parts: search alone
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/config.h"
#include "weft/comm/group.h"
#include "weft/parallel/compose/plan.h"
#include "weft/plan/search/search.h"
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

class AutoPlanner {
 public:
  // A layout, and what its trials have shown.
  struct Trials {
    PlannedLayout planned;
    std::vector<ProbedStep> steps;
  };
  // `config`: of the recipe, or of the options of a program.
  AutoPlanner(Config config, bool is_recipe);

  // Takes some seconds. `task`: of the run; its values stay as they are. Collective.
  void measure(const Task& task, const Options& options, const Group& world);
  // The fastest layout. Throws Error(kBadConfig) on all ranks if none fits: then with the nearest
  // one and what it needs. Collective.
  PlannedLayout choose(const Task& task, const Options& options, const Group& world);
  // The prediction of the layout that the options give, without trying it. Collective.
  PlannedLayout predict(const Options& options, int ranks) const;
  // The fastest layout for another number of ranks, by the model alone. If no layout divides batch
  // and blocks over them, all ranks are replicas. Pure; takes up to some seconds.
  PlannedLayout again(int ranks) const;
  // The fastest layouts for the present ranks, the best one first, if parts of a step take other
  // times than planned from now on. Up to three.
  std::vector<PlannedLayout> again(const PlannedLayout& planned, const Departure& departure) const;

 private:
  plan::Job job_for(int ranks) const;
  std::vector<std::string> codecs() const;
  void probe_replicas(const Task& task, const Options& options, const Group& world);
  std::optional<plan::Layout> replicas_alone(int micro_batches, std::int64_t batch) const;
  std::int64_t probed_batch() const;
  void take(PlannedLayout& planned, const ProbedStep& real, const Group& world) const;
  void compare(std::vector<Trials>& tried, const Task& task, const Options& options,
               const Group& world) const;
  std::vector<PlannedLayout> candidates(const plan::Job& job) const;
  std::optional<PlannedLayout> by_speed(plan::Job job, const plan::Layout& layout) const;
  std::vector<PlannedLayout> best_for(const plan::Job& job) const;
  PlannedLayout describe(const plan::Job& job, const plan::LayoutCandidate& candidate) const;
  bool can_run(const PlannedLayout& planned) const;
  plan::Found found(const plan::Job& job, int keep) const;
  double copies(const plan::Job& job) const;

  const Config config_;
  const bool is_recipe_;
  Options options_;
  parallel::ModelShape shape_;
  std::int64_t samples_ = 0;  // Of an epoch.
  plan::Job job_;
  std::vector<std::pair<plan::Layout, ProbedStep>> probed_;  // Replicas alone.
};

}  // namespace weft::train::internal
