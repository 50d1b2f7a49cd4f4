// Trains and evaluates a task on a mesh: the parallel model, the optimizer steps, and the exchange
// of weights between workers. TrainBatches has this rank's batches, Evaluator the metrics.
//
// It has many members, because it lists all parts of a step: what the user asked for, the model
// made from it, and classes that have a task and a state of their own. Its only own state is rate_.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/observe/step_timer.h"
#include "weft/observe/trace.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/train/internal/evaluator.h"
#include "weft/train/internal/rank_data.h"
#include "weft/train/internal/resizing.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/internal/speeds.h"
#include "weft/train/internal/train_batches.h"
#include "weft/train/internal/workers.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train::internal {

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
    // Load of the busiest expert over an even share, in the least balanced layer. 1: perfectly
    // balanced.
    double load_max = 1;
    double dropped = 0;  // share of all layers' choices that exceeded the capacity
  };

  // `resumed`: checkpoint whose pipeline cuts are reused; may be null. `trace` records when batches
  // are prepared; it must outlive the learner and may be null.
  Learner(Task task, const Options& options, const Mesh& mesh, const Saved* resumed,
          observe::Trace* trace);

  const Batches& batches() const { return batches_; }
  const BatchDivision& division() const { return division_; }
  std::int64_t samples() const { return task_.train.size; }  // per epoch
  std::vector<std::string> metrics() const { return evaluator_.metrics(); }
  bool has_test_data() const { return task_.test.size > 0; }
  double flops_per_sample() const { return task_.flops_per_sample; }
  // Takes the next `passes` batches, at most max_passes(), and does optimizer step `number`, which
  // counts from 1, and what the strategy does after it.
  Step step(std::int64_t number, double lr, observe::StepTimer& timer, std::int64_t passes = 1);
  // 1 without a batch schedule.
  std::int64_t max_passes() const { return plan_.accumulate; }
  // See TrainBatches. `done`: optimizer steps before those of these batches.
  strategy::SharedBatches* shared() const { return train_.shared(); }
  void begin_batches(std::int64_t begin, std::int64_t end, std::int64_t done);
  std::optional<std::int64_t> take_batch();
  std::int64_t end_batches() { return train_.meet(); }
  // Divides the next batches by the measured speed of the ranks. Call it between a reduction of the
  // losses and the next step, while nothing but gradients is in flight.
  void rebalance();
  // Makes rebalance() work from now on, also without options.balance_by_speed. Does nothing where
  // there is one replica. Called on all ranks.
  void start_balancing();
  // Throws if batches of the epoch are left.
  void end_epoch() { train_.end_epoch(); }
  // See Evaluator. With micro-shards or options.eval_batch, the blocks do not depend on the number
  // of ranks.
  Evaluation evaluate();
  std::optional<ExpertUse> expert_use();
  // Position in the data. Call between two steps; all ranks must call set_position().
  data::SamplerState position() const { return train_.position(); }
  void set_position(const data::SamplerState& position) { train_.set_position(position); }
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
  bool has_samples(const data::Share& share) const;
  void run_pass(const data::Batch& batch, Step& step);
  bool update(Step& step);
  void seed_generator(int replica, std::int64_t pass = 0) const;
  void count_times(observe::StepTimer& timer);
  std::unique_ptr<strategy::SharedBatches> make_shared() const;
  TrainBatches::Settings batch_settings();
  Evaluator::Settings evaluation_settings() const;
  bool has_batch_norms();
  void measure_speeds();

  const Task task_;
  const Options options_;
  const Mesh mesh_, worker_mesh_;
  const Batches batches_;
  const parallel::Plan plan_;
  const BatchDivision division_;
  parallel::ParallelModel model_;
  const RankData data_;
  std::optional<double> rate_;  // of the last step
  std::optional<Workers> workers_;
  TrainBatches train_;
  Evaluator evaluator_;
  const double slowdown_;
  std::optional<Speeds> speeds_;  // only with options.balance_by_speed, or start_balancing()
};

}  // namespace weft::train::internal
