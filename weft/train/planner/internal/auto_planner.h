// Plans a run on the machines that its ranks run on.
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
#include "weft/train/internal/planned_layout.h"
#include "weft/train/internal/planner.h"
#include "weft/train/internal/probe.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train::internal {

class AutoPlanner final : public Planner {
 public:
  // A layout, and what its trials have shown.
  struct Trials {
    PlannedLayout planned;
    std::vector<ProbedStep> steps;
  };
  AutoPlanner(Config config, bool is_recipe);

  void measure(const Task& task, const Options& options, const Group& world) override;
  PlannedLayout choose(const Task& task, const Options& options, const Group& world) override;
  PlannedLayout predict(const Options& options, int ranks) const override;
  PlannedLayout again(int ranks) const override;
  std::vector<PlannedLayout> again(const PlannedLayout& planned,
                                   const Departure& departure) const override;

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
