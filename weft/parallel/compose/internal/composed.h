// One rank's part of a composed model: the result of the passes, and the code that runs afterwards.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/caught/caught.h"
#include "weft/engine/gradient_check.h"
#include "weft/engine/sharded.h"
#include "weft/observe/trace.h"
#include "weft/parallel/compose/internal/any_order.h"
#include "weft/parallel/compose/internal/made_up.h"
#include "weft/parallel/compose/internal/own_modules.h"
#include "weft/parallel/compose/internal/statistics.h"
#include "weft/parallel/compose/internal/verification.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/pipeline/pipeline.h"

namespace weft::parallel::internal {

// Position of a parameter of this rank in the whole model.
struct Parameter {
  std::string own;    // "<block>.<name>" in the stage
  std::string whole;  // in the whole model; another name if it is a copy of another stage's
  std::optional<Slice> slice;       // over tp
  std::optional<Slice> expert;      // over ep
  std::vector<std::int64_t> sizes;  // whole
  bool trained = true;
  bool tied = false;  // tied with another block's parameter
  bool copy = false;  // a copy of a tied parameter
  bool edge = false;  // of the model's first or last block: an embedding or a head
};

// A stage: blocks that a rank runs one after the other, and the owner of their parameters.
struct Stage {
  int number = 0;
  int first = 0;  // number of the first block
  std::vector<Block> blocks;
  std::vector<std::string> names;
  std::vector<TensorParallel> tp;  // by block
  std::vector<Parameter> parameters;
  Statistics statistics;
  bool tied = false;                     // tied with other stages
  std::shared_ptr<GradientCheck> check;  // null: gradients are not checked
  std::unique_ptr<Sharded> sharded;      // null: no parameters
  std::unique_ptr<Sharded::NoSync> kept;
  std::unique_ptr<GradientTree> tree;  // sums its gradients; null: autograd adds them
  std::unique_ptr<MadeUp> made_up;     // null: the current micro-batch has samples

  const Parameter* find(const std::string& own) const;
  std::vector<at::Tensor> tied_weights() const;
  // Sets the modes of joined batch norms to those of the caller's, which they have replaced.
  std::vector<std::function<void()>> follow_modes;
};

// ParallelModel::cuts_of().
std::vector<int> saved_cuts(const Mesh& mesh, const checkpoint::Reader& saved);

class Composed {
 public:
  Composed(BlockModel model_, Plan plan_, const Mesh& mesh_);

  double run(const Tensors& inputs, const Tensors& targets, bool training);
  std::vector<double> forward_backward(const Tensors& inputs, const Tensors& targets);
  Tensors predict(const Tensors& inputs);
  bool step();
  void zero_grad();
  double grad_norm();
  ParallelModel::NamedTensors state();
  void load_state(const ParallelModel::NamedTensors& state);
  ParallelModel::NamedTensors gradients();
  bool load_codec(const checkpoint::Reader& saved);
  checkpoint::Parts shards();
  ParallelModel::Held held();
  void take_changes();
  void load_shards(const checkpoint::SliceSource& source);
  void load_weights(const checkpoint::SliceSource& source);
  std::vector<ParallelModel::Difference> compare_replicas();
  void gather();
  void abort(const Error& error) const;
  void set_accumulate(int batches);
  void verify(const Tensors& inputs, const Tensors& targets, Verification::Seed seed);

  at::Tensor loss_of(const Tensors& outputs, const Tensors& targets);
  void before(const schedule::pipeline::Action& action);
  void after(const schedule::pipeline::Action& action);
  int replica() const {
    return (mesh.coordinate("dp") * mesh.size("fsdp") + mesh.coordinate("fsdp")) * mesh.size("ep") +
           mesh.coordinate("ep");
  }
  const Group& replicas() const { return mesh.along({"dp", "fsdp", "ep"}); }  // with own samples
  // Ranks with tokens of their own: those of cp share samples, but not positions.
  const Group& sharers() const {
    return model.experts > 0 && mesh.size("cp") > 1 ? mesh.along({"dp", "fsdp", "cp", "ep"})
                                                    : replicas();
  }
  const Group& copies() const { return mesh.along({"dp", "cp", "ep"}); }
  const Group& copies_of_experts() const { return mesh.along({"dp", "cp"}); }
  // Ranks that have the same blocks and slices.
  const Group& same_blocks() const { return mesh.along({"dp", "fsdp", "cp", "ep"}); }
  double scale() const { return scaler ? scaler->scale() : 1; }
  // True for replicas of whole stages (the engine's stage 0): gradients are combined once per step.
  bool replicates() const { return sharding.stage == 0; }
  void wait_for_weights();
  // True if a step with a gradient that is not finite is skipped.
  bool skips() const {
    return plan.skip_not_finite && !(replicates() && plan.data_parallel.update_in_backward);
  }

  // Results of the passes, in their order.
  const BlockModel model;
  const Plan plan;  // with the actual micro_batches
  const Mesh mesh;
  schedule::pipeline::Request request;
  std::vector<int> cuts;
  std::vector<Stage> stages;
  OwnModules own_modules;
  TensorParallel tp;  // tensor parallelism of the loss
  ContextParallel cp;
  ExpertParallel ep;
  Precision precision = Precision::kAsItIs;
  std::optional<LossScale> scaler;
  std::unique_ptr<Pipeline> pipeline;
  ShardedOptions sharding;
  double max_norm = 0;
  int accumulate = plan.accumulate;                       // see ParallelModel
  UpdateRule rule;                                        // with the current learning rate
  std::vector<std::pair<std::string, std::string>> done;  // pass name and description
  std::int64_t steps = 0;
  ParallelModel::Times times;
  // See ParallelModel.
  std::map<int, std::string> not_finite;
  std::vector<ParallelModel::WrongGradient> wrong_gradients;
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
  Contexts contexts() const { return {.tp = tp, .cp = cp, .ep = ep}; }
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
  DataParallelBase::Times take_engine_times();
  void await_gradients();
  template <class Fn>
  auto guarded(const Fn& fn) -> decltype(fn());
  void seed_dropout(const Stage& stage) const;
  void count_tied_once();
  bool counts(const Parameter& p) const;
  double norm_of_gradients();
  std::optional<ParallelModel::GradientNoise> measure_noise() const;
  bool all_finite();
  bool tell_ranks(bool finite_here);
  void skip_step();
  Checksums checksums_of(const Tensors& inputs, const Tensors& targets, int shift);
  Checksums own_checksums();
  bool gradients_agree(const Checksums& own);
  void find_wrong(const Checksums& own);
  std::string parameter_at(int place) const;
  std::vector<std::span<float>> codec_memory();
  std::vector<std::int64_t> layout() const;
  checkpoint::Rectangle place_of(const Parameter& parameter) const;
  Sharded::Placing placing_of(const Stage& stage) const;
  checkpoint::Slices scaler_slices();
  checkpoint::Slices codec_slices();
  checkpoint::Slices buffer_slices();
  void try_on_all_ranks(const std::string& operation, const std::function<void()>& body);
  void check_on_all_ranks(const checkpoint::SliceSource& source, bool weights_only);
  // Among ranks with the same parameters: whether their parts form the whole model.
  bool is_first_copy() const { return mesh.coordinate("dp") == 0 && mesh.coordinate("cp") == 0; }
  bool is_first_of_ep() const { return mesh.coordinate("ep") == 0; }
  TensorParallel along_ep() const { return {mesh["ep"], 0}; }
  void load(Stage& stage, const std::map<std::string, at::Tensor>& state);
  std::string mismatch(const std::map<std::string, at::Tensor>& state) const;
  // Collects the named tensors of all stages on rank 0 of the world. `of` returns those of one
  // stage, by their own names, on rank 0 of its shards.
  ParallelModel::NamedTensors whole(const std::function<Sharded::NamedTensors(Stage&)>& of,
                                    bool with_buffers = false);

  double samples_ = 0;          // samples of the current batch
  double all_samples_ = 0;      // samples of all replicas, if they were exchanged
  std::int64_t batches_ = 0;    // batches since the last step
  int kept_batches_ = 0;        // batches whose gradients wait for the step
  std::vector<double> losses_;  // of micro-shards, summed; zero for those of other ranks
  std::vector<Part> shards_;
  std::chrono::steady_clock::time_point began_;  // start of the current action
  std::optional<observe::TraceScope> span_;      // of it
  int micro_batch_ = 0;                          // the micro-batch in the stage
  bool stepped_ = false;
  bool scaled_ = false;  // step() clipped or unscaled, and left grad() as it was
  double norm_ = -1;     // gradient norm of the last step; below 0: none
  std::optional<Verification> verification_;  // of the current step
  bool verifying_ = false;                    // train() keeps its gradients
  int replica_shift_ = 0;                     // train() draws as the replica so many places on
  std::string own_not_finite_;  // parameter of this rank, in the whole model; empty: none
};

// Ends the groups if an exception is thrown on this rank, so that no peer waits.
template <class Fn>
auto Composed::guarded(const Fn& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const std::exception& error) {
    abort(as_ended(error, "rank " + std::to_string(mesh.world().rank())));
    throw;
  }
}

// libtorch's error about the inputs of `what`, such as wrong shapes, as one line.
Error in_plain_words(const std::string& what, const Tensors& inputs, const c10::Error& error);

template <class Fn>
auto in_one_line(const std::string& what, const Tensors& inputs, const Fn& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const c10::DistBackendError&) {
    throw;
  } catch (const c10::Error& error) {
    throw in_plain_words(what, inputs, error);
  }
}

void compose(Composed& composed);

}  // namespace weft::parallel::internal
