// The steps since the last look: each rank notes its own, and every few steps one small all-reduce
// makes them everybody's. So metrics of every step cost no exchange at every step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/comm/group.h"
#include "weft/observe/metrics.h"
#include "weft/observe/step_timer.h"

namespace weft::train::internal {

class StepLog {
 public:
  struct Step {
    std::int64_t step = 0;
    std::int64_t epoch = 0;
    double rate = 0;                          // learning rate
    double samples = 0;                       // over all ranks
    double seconds = 0;                       // this rank's, as are the phases
    std::array<double, observe::kPhases> ms;  // by phase
    std::vector<double> losses;               // summed over samples; one, or one a micro-shard
    std::optional<double> grad_norm = {};     // before clipping
    double sent_bytes = 0, shared_bytes = 0;  // this rank's, as comm::Traffic
  };
  // What MFU (model FLOPs utilization) follows from.
  struct Flops {
    double per_sample = 0;  // 0: unknown
    double peak = 0;        // FLOP/s of all ranks together; 0: unknown
  };
  struct Seen {
    double loss = 0;  // mean over the samples of the last step
    double sum = 0;   // `sum` as given, plus the loss of every step, one after the other
    bool stop = false;
    bool save = false;
    double memory_gb = 0;  // of this rank's process
    // The last steps had no finite loss: how many in a row, the first of them, and the first rank
    // whose part was not finite then.
    struct NotFinite {
      int steps = 0;
      std::int64_t first_step = 0;
      int rank = -1;
    } not_finite;
  };
  // What a rank asks for.
  struct Wishes {
    bool stop = false;
    bool save = false;
  };

  // `metrics` may be null: nothing is written.
  StepLog(Group world, observe::Metrics* metrics, Flops flops)
      : world_(std::move(world)), metrics_(metrics), flops_(flops) {}

  void add(Step step) { steps_.push_back(std::move(step)); }
  // Collective: reduces and writes what was added. A wish of any rank comes true on all. With
  // `show_ranks`, rank 0 also writes the state of each rank.
  Seen reduce(double sum, Wishes wishes, bool show_ranks = false);

 private:
  double mean_compute_ms() const;  // of this rank's forward and backward since the last reduce()
  observe::RankState state() const;
  // Of the steps since the last reduce(); `moved`: bytes sent, and shared, by all ranks in them.
  observe::Values group_values(std::span<const observe::RankState> ranks,
                               std::span<const double> moved) const;
  void write(const Step& step, double loss, const observe::Values& more) const;
  int first_rank_not_finite(const Step& step) const;

  Group world_;
  observe::Metrics* metrics_;
  const Flops flops_;
  std::vector<Step> steps_;
  Seen::NotFinite not_finite_;
};

}  // namespace weft::train::internal
