// A task on a mesh: the model under its plan, the batches of this rank, evaluation.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/log.h"
#include "weft/data/loader.h"
#include "weft/observe/step_timer.h"
#include "weft/observe/trace.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/train/internal/run_state.h"
#include "weft/train/internal/speeds.h"
#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train {

// Of a whole data set, each sample counted once whatever the number of ranks.
struct Evaluation {
  std::int64_t samples = 0;  // 0: nothing was evaluated
  double loss = 0;
  std::vector<std::pair<std::string, double>> metrics;  // by name, without the loss
  double metric(const std::string& name) const;         // 0 without it
};

namespace internal {

// Throws Error(kBadConfig) for a plan that cannot be and options that contradict each other, before
// anything is made. Not collective.
void check_learner(const parallel::BlockModel& model, const Options& options, const Mesh& mesh,
                   std::int64_t samples);

// One rank's part. Calls are collective but for position(), model() and describe().
class Learner {
 public:
  struct Step {
    double samples = 0;          // over all ranks
    std::vector<double> losses;  // summed over samples, this rank's part; one, or one a micro-shard
    // before clipping; none where gradients are not clipped, or the step was skipped
    std::optional<double> grad_norm;
  };
  // Of experts' choices in training since the last call, alike on all ranks.
  struct ExpertUse {
    double load_max =
        // in the least even layer, what the most wanted expert got over an even share: 1 where all
        // got the same
        1;
    double dropped = 0;  // share over the capacity, of all layers' choices
  };

  // `codec`: what the codec of the run that goes on remembers. `trace`, where batches are made on
  // the time line: outlives it, may be null.
  Learner(Task task, const Options& options, const Mesh& mesh, const Saved* resumed,
          observe::Trace* trace);

  const Batches& batches() const { return batches_; }
  std::int64_t samples() const { return task_.train.size; }  // of an epoch
  double flops_per_sample() const { return task_.flops_per_sample; }
  // The next batch and one step of the optimizer.
  Step step(double lr, observe::StepTimer& timer);
  // Shares of the batches to come, by the ranks' speed. Between a reduction of losses and the next
  // step, when nothing is under way but gradients.
  void rebalance();
  // Throws where the epoch's batches are not used up.
  void end_epoch();
  // In blocks of the same samples whatever the number of ranks, added in their order.
  Evaluation evaluate();
  std::optional<ExpertUse> expert_use();
  // Between two steps: where the batches are. set_position() is for all ranks.
  data::SamplerState position() const { return loader_.state(); }
  void set_position(const data::SamplerState& position) { loader_.restore(position); }
  parallel::ParallelModel& model() { return model_; }

 private:
  data::Loader make_loader(const data::Source& source, const data::SamplerOptions& sampling,
                           int prefetch) const;
  void seed_generator() const;
  at::Tensor measure(const data::Batch& batch, bool mine);
  void count_times(observe::StepTimer& timer);

  const Task task_;
  const Options options_;
  const Mesh mesh_;
  const std::vector<Metric> metrics_;  // the loss among them
  const Batches batches_;
  observe::Trace* const trace_;
  parallel::Plan plan_;
  parallel::ParallelModel model_;
  data::Loader loader_;
  std::optional<Speeds> speeds_;  // where shares go by speed
};

}  // namespace internal
}  // namespace weft::train
