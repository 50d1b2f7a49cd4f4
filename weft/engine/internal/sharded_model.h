// Stages 1 to 3: the path of a step over units of parameters, of which each rank has a shard.
//
//   UnitMemory              the units, with the memory of weights, masters and optimizer state
//   ParameterGathers, RunningBlocks
//                           when units are gathered, and when they are released
//   Gradients, ReplicaSums  gradients on their way to the shards
//   ShardUpdates            the optimizer
//   ShardedChanges          changes of the module between two steps
//   ShardedState            saving and loading
//
//   run()        ParameterGathers::enter -> the block's forward -> reshard
//                (gathered stage 3 alone)
//   backward()   hook of the block's outputs: ParameterGathers::enter
//                hook of each parameter: Gradients::ready
//                a unit is released when all of its parameters have had their gradients, or the
//                block's inputs theirs
//                at the end: the rest of the pass, the rest of the gradients
//   step()       Gradients::settle, the norm, ShardUpdates::update, weights to all ranks
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/engine/internal/buffer_broadcast.h"
#include "weft/engine/internal/engine.h"
#include "weft/engine/internal/gradients.h"
#include "weft/engine/internal/parameter_gathers.h"
#include "weft/engine/internal/replica_sums.h"
#include "weft/engine/internal/running_blocks.h"
#include "weft/engine/internal/shard_updates.h"
#include "weft/engine/internal/sharded_changes.h"
#include "weft/engine/internal/sharded_state.h"
#include "weft/engine/internal/unit_memory.h"

namespace weft::engine {

class ShardedModel final : public Engine {
 public:
  // Collective.
  ShardedModel(Context context, OptimizerSpec optimizer);
  // Leaves parameters that are gathered for each pass without memory.
  ~ShardedModel() override;
  void abandon(const std::string& why) noexcept override;

  Tensors run(std::size_t block, const Tensors& inputs) override;
  void skip_batch() override;
  void settle() override {}  // step() has waited
  // See Sharded.
  void end_pass();
  void unshard();
  void reshard();

  void send_gradients() override;
  void await_gradients() override;
  void each_gradient(
      const std::function<void(const std::string&, const at::Tensor&)>& take) override;
  double grad_norm() override;
  Sharded::Finite are_finite() override;
  void step(double scale) override;
  void zero_grad() override;
  NamedTensors gradients() override;
  std::vector<std::span<float>> codec_memory() { return replica_sums_->memory(); }
  std::int64_t codec_steps() const { return replica_sums_->steps(); }
  void set_codec_steps(std::int64_t steps) { replica_sums_->set_steps(steps); }
  Sharded::Memory memory() override;
  std::string describe() const override;

 private:
  using RunPtr = internal::RunPtr;

  std::vector<internal::Unit>& units() const { return memory_->units(); }
  std::shared_ptr<ShardedModel> self() {
    return std::static_pointer_cast<ShardedModel>(shared_from_this());
  }
  bool travels() const { return options_.stage >= 2 && paused_ == 0; }
  void begin_company();
  void make_passes();

  void hook_inputs(const RunPtr& run, const Tensors& inputs);
  void hook_outputs(const RunPtr& run, const Tensors& outputs);
  // A backward() under way.
  class Backward;
  void begin_backward();
  void end_broken_backward(bool sends);
  // Throws Error(kInvalidArgument) if an exception has ended a backward() in the middle.
  void check_whole() const;
  void open(const RunPtr& run);
  void input_done(const RunPtr& run);
  void on_ready(int param) override;
  // Until zero_grad(), the ranks hold them together.
  bool gradients_count() const override { return true; }
  void end_backward();
  void send_all();
  void empty_passes(bool forward);
  void collect();
  void sync_buffers();

  void each_whole(const Visit& visit) override;
  void take_over(const std::map<std::string, at::Tensor>& state) override;
  checkpoint::Slices slices(const Sharded::Placing& placing, Wanted wanted) override;
  void begin_load() override;
  void end_load() override;
  bool counts_held_apart() const override { return true; }
  void check_values() override { changes_->check_values(); }
  void take_loaded() override;

  Group weights_;  // used only for gathers
  const bool shared_;
  internal::Meter meter_;
  std::unique_ptr<internal::UnitMemory> memory_;
  std::optional<internal::ReplicaSums> replica_sums_;
  internal::BufferBroadcast buffers_;
  std::unique_ptr<internal::ParameterGathers> gathers_;  // null if no unit is gathered
  std::unique_ptr<internal::Gradients> gradients_;
  std::optional<internal::RunningBlocks> running_;  // with gathers_
  std::optional<internal::ShardUpdates> shard_updates_;
  std::optional<internal::ShardedChanges> changes_;
  std::optional<internal::ShardedState> state_;
  bool in_backward_ = false;
  bool broken_ = false;           // peers may wait for gradients of a backward() that has ended
  bool forward_pending_ = false;  // a forward pass with gradients had no backward pass yet
  bool left_ = false;             // the gradients of this step have been sent
};

}  // namespace weft::engine
