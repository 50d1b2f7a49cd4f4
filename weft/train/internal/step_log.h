// Records each step on its rank and reduces the records every few steps in one small all-reduce. So
// the metrics of every step are written without communication at every step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/comm/group.h"
#include "weft/observe/run/metrics.h"
#include "weft/observe/step_timer.h"
#include "weft/optim/noise_scale.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::train::internal {

class StepLog {
 public:
  struct Step {
    std::int64_t step = 0;
    std::int64_t epoch = 0;
    double rate = 0;                          // learning rate
    double samples = 0;                       // over all ranks
    double seconds = 0;                       // of this rank, like `ms`
    std::array<double, observe::kPhases> ms;  // by phase
    std::vector<double> losses;               // summed over samples; one, or one per micro-shard
    std::optional<double> grad_norm = {};     // before clipping
    // This rank's parts. Present at all steps or at none, except at skipped ones.
    std::optional<parallel::ParallelModel::GradientNoise> noise = {};
    double sent_bytes = 0, shared_bytes = 0;  // of this rank, as in comm::Traffic
    double waited_s = 0;                      // that this rank waited for others
    bool skipped = false;                     // nothing was updated
    bool bad_gradient = false;                // ... for a reason other than the loss scale
    observe::Values program = {};             // values that the program has logged
  };
  // Inputs for the MFU (model FLOPs utilization).
  struct Flops {
    double per_sample = 0;  // 0: unknown
    double peak = 0;        // FLOP/s of all ranks together; 0: unknown
  };
  struct Seen {
    double loss = 0;  // mean over the samples of the last step
    double sum = 0;   // the `sum` argument plus the loss of every step, added in order; a step that
                      // a rank has skipped is left out
    double samples = 0;  // of the steps whose loss was added
    bool stop = false;
    int stops = 0;  // ranks that wish to stop
    bool end = false;
    bool save = false, save_by_time = false;
    int ranks = 0;                           // rank 0's wish
    double step_s = 0;                       // mean over the added steps and the ranks
    double memory_gb = 0;                    // of this rank's process
    std::optional<double> grad_norm = {};    // of the last step
    std::optional<double> noise_scale = {};  // in samples
    // By rank, over the steps since the last call: see awaited_shares().
    std::vector<double> awaited = {};
    std::int64_t steps = 0;
    // The latest consecutive steps with a NaN or infinite loss or gradient: their number, the first
    // of them, and the first rank whose part of the loss was not finite then (-1: only the sum is
    // not, or only a gradient).
    struct NotFinite {
      int steps = 0;
      std::int64_t first_step = 0;
      int rank = -1;
      bool is_loss = false;  // the loss of one of them
    } not_finite;
  };
  // Requests of one rank.
  struct Wishes {
    bool stop = false;
    bool end = false;           // as after the last epoch
    bool save = false;          // the program's wish
    bool save_by_time = false;  // a checkpoint is due by train.checkpoint_minutes
    int ranks = 0;              // number of ranks that the job shall have, on rank 0; 0: no wish
  };

  // `metrics` may be null; then nothing is written.
  StepLog(Group world, observe::Metrics* metrics, Flops flops)
      : world_(std::move(world)), metrics_(metrics), flops_(flops) {}

  void add(Step step) { steps_.push_back(std::move(step)); }
  // Writes values of the program after the record of the step, which reduce() may still have to
  // write: so the steps of the records never decrease.
  void add_program(std::int64_t step, std::int64_t epoch, const observe::Values& values);
  // Reduces and writes the added steps. A wish of any rank is returned on all ranks. With
  // `show_ranks`, rank 0 also writes the state of each rank. Collective.
  Seen reduce(double sum, Wishes wishes, bool show_ranks = false);
  // Averages of the gradient noise.
  const optim::NoiseScale::State& noise() const { return noise_.state(); }
  void restore_noise(const optim::NoiseScale::State& state) { noise_.restore(state); }
  // Steps of the run that were skipped, of those that reduce() has seen.
  std::int64_t skipped() const { return skipped_; }
  void restore_skipped(std::int64_t steps) { skipped_ = steps; }

 private:
  // Mean over the steps of this rank since reduce().
  template <class Of>
  double mean(const Of& of) const;
  observe::RankState state() const;
  // Metrics of the steps since the last reduce(). `moved`: bytes that all ranks sent and shared.
  observe::Values group_values(std::span<const observe::RankState> ranks,
                               std::span<const double> moved) const;
  void write(const Step& step, double loss, const observe::Values& more) const;
  void add_noise(const Step& step, const double* means);
  int first_rank_not_finite(const Step& step) const;

  Group world_;
  observe::Metrics* metrics_;
  const Flops flops_;
  std::vector<Step> steps_;
  Seen::NotFinite not_finite_;
  std::int64_t skipped_ = 0;
  optim::NoiseScale noise_;
};

}  // namespace weft::train::internal
