// Trains and evaluates a task on a mesh: the parallel model, this rank's batches, the metrics.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/log.h"
#include "weft/data/loader.h"
#include "weft/observe/step_timer.h"
#include "weft/observe/trace.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/strategy/shared_batches.h"
#include "weft/train/internal/resizing.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/internal/speeds.h"
#include "weft/train/internal/workers.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train {

// Result over a whole data set. Each sample counts once at any number of ranks.
struct Evaluation {
  std::int64_t samples = 0;  // 0: nothing was evaluated
  double loss = 0;
  std::vector<std::pair<std::string, double>> metrics;  // by name, without the loss
  double metric(const std::string& name) const;         // 0 without it
};

namespace internal {

// Throws Error(kBadConfig) for an invalid plan or contradictory options, before anything is
// created. Not collective.
void check_learner(const parallel::BlockModel& model, const Options& options, const Mesh& mesh,
                   std::int64_t samples);

// One rank's part. All calls are collective except the getters.
class Learner {
 public:
  struct Step {
    double samples = 0;          // over all ranks; with shared() of this rank
    std::vector<double> losses;  // this rank's sums over samples: one, or one per micro-shard
    // Before clipping. nullopt if neither clipping nor noise_scale needs it, or the step was
    // skipped.
    std::optional<double> grad_norm;
    std::optional<parallel::ParallelModel::GradientNoise> noise;
    bool skipped = false;     // A gradient was not finite, and nothing was updated.
    std::int64_t passes = 0;  // batches
  };
  // Routing of tokens to experts in training since the last call. The same on all ranks.
  struct ExpertUse {
    double load_max =
        // Load of the busiest expert over an even share, in the least balanced layer. 1: perfectly
        // balanced.
        1;
    double dropped = 0;  // share of all layers' choices that exceeded the capacity
  };

  // `resumed`: checkpoint whose pipeline cuts are reused; may be null. `trace` records when batches
  // are prepared; it must outlive the learner and may be null.
  Learner(Task task, const Options& options, const Mesh& mesh, const Saved* resumed,
          observe::Trace* trace);

  const Batches& batches() const { return batches_; }
  const BatchDivision& division() const { return division_; }
  std::int64_t samples() const { return task_.train.size; }  // per epoch
  std::vector<std::string> metrics() const;                  // names, the loss among them
  bool has_test_data() const { return task_.test.size > 0; }
  double flops_per_sample() const { return task_.flops_per_sample; }
  // Takes the next `passes` batches, at most max_passes(), and does optimizer step `number`, which
  // counts from 1, and what the strategy does after it.
  Step step(std::int64_t number, double lr, observe::StepTimer& timer, std::int64_t passes = 1);
  // 1 without a batch schedule.
  std::int64_t max_passes() const { return plan_.accumulate; }
  // Where workers take batches when they are ready (asynchronous strategies). Null elsewhere.
  strategy::SharedBatches* shared() const { return shared_.get(); }
  // With shared(): gives out the batches of the steps [begin, end) of the epoch. `done`: optimizer
  // steps before them. Collective.
  void begin_batches(std::int64_t begin, std::int64_t end, std::int64_t done);
  // With shared(): takes the batch of the next step(). Returns its step within the epoch; nullopt:
  // none is left. Only ranks of one worker wait for each other.
  std::optional<std::int64_t> take_batch();
  // With shared(): waits until all workers are done with the batches that were given out. Returns
  // the step at which they end. Collective.
  std::int64_t end_batches();
  // Divides the next batches by the measured speed of the ranks. Call it between a reduction of the
  // losses and the next step, while nothing but gradients is in flight.
  void rebalance();
  // Makes rebalance() work from now on, also without options.balance_by_speed. Does nothing where
  // there is one replica. Called on all ranks.
  void start_balancing();
  // Throws if batches of the epoch are left.
  void end_epoch();
  // Sums over blocks of samples in a fixed order. With micro-shards or options.eval_batch, the
  // blocks do not depend on the number of ranks.
  Evaluation evaluate();
  std::optional<ExpertUse> expert_use();
  // Position in the data. Call between two steps; all ranks must call set_position().
  data::SamplerState position() const { return shared_ ? position_ : loader_.state(); }
  void set_position(const data::SamplerState& position) {
    position_ = position;
    loader_.restore(position);
  }
  // The model; with a strategy that of this rank's worker.
  parallel::ParallelModel& model() { return model_; }
  // Null unless there are several workers.
  Workers* workers() { return workers_ ? &*workers_ : nullptr; }
  // This rank's part of the state, for a checkpoint or for a copy (is_copy) from which only this
  // job goes on. Collective with a strategy.
  checkpoint::Parts parts(bool is_copy);
  // True on the rank that reports what its worker has found: rank 0 of the world without workers.
  bool is_first_of_worker() const { return worker_mesh_.world().rank() == 0; }
  // Rank of the world of a rank of this worker.
  int world_rank(int of_worker) const;

 private:
  int replica() const;
  bool has_samples(const data::Share& share) const;
  data::Batch next_batch(observe::StepTimer& timer);
  void run_pass(const data::Batch& batch, Step& step);
  bool update(Step& step);
  Evaluation evaluate_weights();
  data::Loader make_loader(const data::Source& source, const data::SamplerOptions& sampling,
                           int prefetch) const;
  void seed_generator(int replica, std::int64_t pass = 0) const;
  at::Tensor measure(const data::Batch& batch, bool mine);
  void count_times(observe::StepTimer& timer);
  std::unique_ptr<strategy::SharedBatches> make_shared() const;
  data::Loader make_train_loader();
  bool has_batch_norms();
  void measure_speeds();

  const Task task_;
  const Options options_;
  const Mesh mesh_, worker_mesh_;
  const std::vector<Metric> metrics_;  // including the loss
  const Batches batches_;
  observe::Trace* const trace_;
  parallel::Plan plan_;
  const BatchDivision division_;
  parallel::ParallelModel model_;
  std::optional<double> rate_;  // of the last step
  std::optional<Workers> workers_;
  const std::unique_ptr<strategy::SharedBatches> shared_;
  data::Loader loader_;
  const double slowdown_;
  std::optional<Speeds> speeds_;  // only with options.balance_by_speed, or start_balancing()
  // With shared_ only.
  data::SamplerState position_;       // at the last begin_batches() or end_batches()
  std::int64_t begun_ = 0;            // step within the epoch of the last begin_batches()
  std::optional<data::Batch> taken_;  // by take_batch()
  std::chrono::nanoseconds taking_{0};
};

}  // namespace internal
}  // namespace weft::train
