// One rank's part of a composed model: runs batches and steps.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/observe/trace.h"
#include "weft/parallel/compose/internal/composition.h"
#include "weft/parallel/compose/internal/model_state.h"
#include "weft/parallel/compose/internal/verification.h"

namespace weft::parallel::internal {

class Composed : public Composition {
 public:
  Composed(BlockModel model_, Plan plan_, const Mesh& mesh_);
  // Its parts hold references to it.
  Composed(const Composed&) = delete;
  Composed& operator=(const Composed&) = delete;

  double run(const Tensors& inputs, const Tensors& targets, bool training);
  std::vector<double> forward_backward(const Tensors& inputs, const Tensors& targets);
  Tensors predict(const Tensors& inputs);
  bool step();
  void zero_grad();
  double grad_norm();
  // The whole model's gradients, as state() gives weights.
  ParallelModel::NamedTensors gradients();
  void set_accumulate(int batches);
  void verify(const Tensors& inputs, const Tensors& targets, Verifier::Seed seed);
  const std::vector<ParallelModel::WrongGradient>& wrong_gradients() const {
    return verifier_.wrong();
  }
  // Loads and saves.
  ModelState& state() { return state_; }

  ParallelModel::Times times;
  // See ParallelModel.
  std::map<int, std::string> not_finite;
  std::optional<ParallelModel::GradientNoise> noise;

 private:
  // Rows of a micro-batch, as told to the pipeline (at least one), and the factor of the loss.
  struct Part {
    std::int64_t begin, rows, told;
    double weight;
  };
  struct Cut {
    std::vector<Tensors> inputs, targets;
  };
  void require_inputs(const Tensors& inputs, const std::string& operation) const;
  double samples_of_batch();
  std::vector<Part> even_parts(std::int64_t rows, double factor) const;
  std::vector<Part> micro_shards(double all, double factor) const;
  Cut cut(const Tensors& inputs, const Tensors& targets, const std::vector<Part>& parts) const;
  double train(const Tensors& inputs, const Tensors& targets);  // mean loss; micro-shards: losses_
  Tensors predict_at_once(const Tensors& inputs);
  // True for a micro-batch of made-up rows.
  bool is_made_up(int micro_batch) const;
  void finish_statistics();
  double mean_over_replicas(double loss, double samples);
  double mean_of_micro_shards(double all);
  // True if the current gradients are the last ones before step().
  bool is_last_batch() const;
  engine::DataParallelBase::Times take_engine_times();
  void await_gradients();
  void seed_dropout(const Stage& stage) const;
  void count_tied_once();
  bool counts(const Parameter& p) const;
  double norm_of_gradients();
  std::optional<ParallelModel::GradientNoise> measure_noise() const;
  bool all_finite();
  bool tell_ranks(bool finite_here);
  void skip_step();
  at::Tensor loss_of_part(const Tensors& outputs, const Tensors& targets);
  void begin_action(const schedule::pipeline::Action& action);
  void end_action(const schedule::pipeline::Action& action);
  Checksums checksums_of(const Tensors& inputs, const Tensors& targets, int shift);

  ModelState state_;
  Verifier verifier_;
  int accumulate_ = plan.accumulate;  // see ParallelModel
  double samples_ = 0;                // samples of the current batch
  double all_samples_ = 0;            // samples of all replicas, if they were exchanged
  std::int64_t batches_ = 0;          // batches since the last step
  int kept_batches_ = 0;              // batches whose gradients wait for the step
  std::vector<double> losses_;        // of micro-shards, summed; zero for those of other ranks
  std::vector<Part> shards_;
  std::chrono::steady_clock::time_point began_;  // start of the current action
  std::optional<observe::TraceScope> span_;      // of it
  int micro_batch_ = 0;                          // the micro-batch in the stage
  bool stepped_ = false;
  bool scaled_ = false;         // step() clipped or unscaled, and left grad() as it was
  double norm_ = -1;            // gradient norm of the last step; below 0: none
  bool verifying_ = false;      // train() keeps its gradients
  int replica_shift_ = 0;       // train() draws as the replica at this distance
  std::string own_not_finite_;  // parameter of this rank, in the whole model; empty: none
};

}  // namespace weft::parallel::internal
