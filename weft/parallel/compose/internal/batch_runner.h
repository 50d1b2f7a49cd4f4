// Runs batches of this rank's replica through its stages, up to their gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/parallel/compose/internal/composition.h"
#include "weft/parallel/compose/internal/micro_batches.h"
#include "weft/parallel/compose/internal/model_times.h"
#include "weft/parallel/compose/internal/verification.h"

namespace weft::parallel::internal {

// See ParallelModel for the functions of the same name.
class BatchRunner {
 public:
  // Both must outlive it.
  BatchRunner(Composition& composition, ModelTimes& times)
      : c_(composition),
        times_(times),
        micro_batches_(composition),
        accumulate_(composition.plan.accumulate) {}
  // The pipeline holds references to it.
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;

  PipelineCalls calls();
  double train_step(const Tensors& inputs, const Tensors& targets);
  std::vector<double> forward_backward(const Tensors& inputs, const Tensors& targets);
  double evaluate(const Tensors& inputs, const Tensors& targets);
  Tensors predict(const Tensors& inputs);
  void zero_grad();
  void set_accumulate(int batches);
  int accumulate() const { return accumulate_; }  // batches of a step
  // For Verifier::Compute.
  Checksums checksums_of(const Tensors& inputs, const Tensors& targets, int shift);

  // For the end of a step.
  int kept() const { return kept_batches_; }  // batches whose gradients wait for it
  // This replica's part of the samples of all replicas, where gradients are summed; else 1.
  double share() const { return all_samples_ > 0 ? samples_ / all_samples_ : 1; }
  double samples() const { return samples_; }  // of the last batch
  // Gradients of batches that did not fill `accumulate` leave.
  void release_gradients();
  // The weights are updated. `is_scaled`: by clipped or unscaled gradients, but grad() has not
  // changed.
  void end_step(bool is_scaled);
  // As if the batches of the step had not been.
  void undo_step();
  // True if the last step() has used the gradients.
  bool is_stepped() const { return stepped_; }

 private:
  void require_inputs(const Tensors& inputs, const std::string& operation) const;
  double samples_of_batch() const;
  double train(const Tensors& inputs, const Tensors& targets);  // the mean loss
  Tensors predict_at_once(const Tensors& inputs);
  Tensors predict_in_parts(const Tensors& inputs);
  void finish_statistics();
  double mean_over_replicas(double loss, double samples) const;
  double mean_of_micro_shards() const;
  // True if the current gradients are the last ones before step().
  bool is_last_batch() const;
  void seed_dropout(const Stage& stage, int micro_batch) const;
  void count_tied_once();
  void begin_action(const schedule::pipeline::Action& action);
  void end_action(const schedule::pipeline::Action& action);

  Composition& c_;
  ModelTimes& times_;
  MicroBatches micro_batches_;
  int accumulate_;            // see ParallelModel
  double samples_ = 0;        // samples of the current batch
  double all_samples_ = 0;    // samples of all replicas; 0: they were not exchanged
  std::int64_t batches_ = 0;  // batches since the last step
  int kept_batches_ = 0;      // batches whose gradients wait for the step
  bool stepped_ = false;
  bool scaled_ = false;     // step() clipped or unscaled, and left grad() as it was
  bool verifying_ = false;  // train() keeps its gradients
  int replica_shift_ = 0;   // train() draws as the replica at this distance
};

}  // namespace weft::parallel::internal
