// What sharded data parallelism knows on one rank: units, the order of their gathers, gradients on their way, the optimiser's shards.
//
//   run()        Passes::enter -> the block's forward -> let_go                       (gathered stage 3 alone)
//   backward()   hook of the block's outputs: Passes::enter; hook of each parameter: Gradients::ready; a unit is let go when all of its
//                parameters have had their gradients, or the block's inputs theirs; at the end: the rest of the pass, the rest of gradients
//   step()       Gradients::settle, the norm, Updates::step, weights to everybody
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>

#include "weft/engine/internal/gradients.h"
#include "weft/engine/internal/passes.h"
#include "weft/engine/internal/unit.h"
#include "weft/engine/internal/updates.h"
#include "weft/engine/sharded.h"

namespace weft::parallel {

class ShardedModel : public std::enable_shared_from_this<ShardedModel> {
 public:
  using NamedTensors = Sharded::NamedTensors;

  struct Subject {
    std::vector<Block> blocks;
    Group group;
    OptimizerSpec optimizer;
    ShardedOptions options;
  };
  explicit ShardedModel(Subject subject);
  // After construction, since hooks hold a weak pointer to it.
  void start();
  // Nothing waits for this rank's share any more.
  void abandon() noexcept;

  Tensors run(std::size_t block, const Tensors& inputs);
  at::Tensor forward(const at::Tensor& input);
  void set_samples(double samples) { samples_ = samples; }
  void skip_batch();
  void end_pass();
  void pause() { ++paused_; }
  void resume() { --paused_; }

  void step(double scale);
  void zero_grad();
  void send_gradients();
  void hold();
  void let_go();
  double grad_norm();
  void await_gradients();
  void each_gradient(const std::function<void(const std::string&, const at::Tensor&)>& take);
  internal::Updates& updates() { return *updates_; }
  internal::ReplicaSums& replica_sums() { return reducer_->replica_sums(); }
  std::int64_t steps() const { return steps_; }

  NamedTensors gradients();
  NamedTensors state();
  void load_state(const NamedTensors& state);
  Sharded::Memory memory();
  std::string describe() const;

 private:
  // One forward of a block, until its backward is over.
  struct Run {
    int block = 0;
    int inputs = 0, inputs_left = 0;  // whose gradients tell that the backward is over
    std::set<int> held;               // units
  };
  using RunPtr = std::shared_ptr<Run>;

  void check_options(const OptimizerSpec& optimizer) const;
  void collect_params();
  void check_same() const;
  void place(internal::Unit& unit);
  at::Tensor values_of(const internal::Unit& unit);
  void view_into(internal::Unit& unit);

  void hook_inputs(const RunPtr& run, const Tensors& inputs);
  void hook_outputs(const RunPtr& run, const Tensors& outputs);
  void begin_backward();
  void open(const RunPtr& run);
  void input_done(const RunPtr& run);
  void close_unit(int unit);
  void on_ready(int param);
  void end_backward();
  // Aborts the groups, so that no peer waits, and gives the error on.
  template <class Body>
  auto guarded(const Body& body) -> decltype(body());

  void empty_passes();
  void collect();
  double norm_of_shards();
  void publish(bool frozen);

  at::Tensor whole_of(const internal::Unit& unit, const at::Tensor& shard);
  at::Tensor shard_of(const internal::Unit& unit, const at::Tensor& whole);
  void take_apart(const internal::Unit& unit, const at::Tensor& whole, const std::string& suffix, NamedTensors& into) const;
  std::string mismatch(const NamedTensors& state) const;
  void refuse(const std::string& why);
  void take_over(const std::map<std::string, at::Tensor>& state);
  void take_over_steps(const std::map<std::string, at::Tensor>& state);

  bool travels() const { return options_.stage >= 2 && paused_ == 0; }

  std::vector<Block> blocks_;
  ShardedOptions options_;
  Group group_;      // the caller's
  Group weights_;    // for gathers alone
  Group gradients_;  // for everything else
  bool shared_;
  internal::Meter meter_;
  std::vector<internal::Param> params_;
  std::vector<internal::Unit> units_;
  std::unique_ptr<internal::Passes> passes_;  // null where nothing is gathered for a block
  std::unique_ptr<internal::Updates> updates_;
  double samples_ = 0;
  std::unique_ptr<internal::Gradients> reducer_;
  std::list<RunPtr> open_;
  std::vector<int> kept_;  // units, by hold()
  bool in_backward_ = false;
  bool forward_pending_ = false;  // a forward pass with gradients, and no backward pass since
  bool left_ = false;             // the gradients made since the last step have left
  bool stepped_ = false;          // and nothing has been run since
  int paused_ = 0;
  std::int64_t steps_ = 0;
};

template <class Body>
auto ShardedModel::guarded(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    abandon();
    throw;
  }
}

}  // namespace weft::parallel
