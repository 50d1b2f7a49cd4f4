// Stages 1 to 3: units of parameters, the order of their gathers, gradients on their way, each
// rank's shards of optimizer state.
//
//   run()        Passes::enter -> the block's forward -> reshard
//                (gathered stage 3 alone)
//   backward()   hook of the block's outputs: Passes::enter
//                hook of each parameter: Gradients::ready
//                a unit is released when all of its parameters have had their gradients, or the
//                block's inputs theirs
//                at the end: the rest of the pass, the rest of the gradients
//   step()       Gradients::settle, the norm, Updates::update, weights to all ranks
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "weft/engine/internal/buffer_broadcast.h"
#include "weft/engine/internal/engine.h"
#include "weft/engine/internal/gradients.h"
#include "weft/engine/internal/passes.h"
#include "weft/engine/internal/running_blocks.h"
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
  std::vector<std::span<float>> codec_memory() { return memory_->codec_memory(); }
  std::int64_t codec_steps() const { return reducer_->codec_steps(); }
  void set_codec_steps(std::int64_t steps) { reducer_->set_codec_steps(steps); }
  Sharded::Memory memory() override;
  std::string describe() const override;

 private:
  using RunPtr = internal::RunPtr;

  void check_options(const OptimizerSpec& optimizer) const;
  void sync_buffers();
  std::vector<internal::Unit>& units() const { return memory_->units(); }
  std::shared_ptr<ShardedModel> self() {
    return std::static_pointer_cast<ShardedModel>(shared_from_this());
  }

  void hook_inputs(const RunPtr& run, const Tensors& inputs);
  void hook_outputs(const RunPtr& run, const Tensors& outputs);
  void begin_backward();
  void open(const RunPtr& run);
  void input_done(const RunPtr& run);
  void on_ready(int param) override;
  // Until zero_grad(), the ranks hold them together.
  bool gradients_count() const override { return true; }
  void end_backward();

  void watch_module();
  void check_written();
  void note_written();
  bool is_whole_once() const;
  bool is_written_once(const internal::Unit& unit) const;
  internal::WrittenCheck kept(const internal::Unit& unit);
  std::vector<internal::WholePiece> pieces() const;
  void end_written(const internal::Unit& unit, const internal::WrittenCheck& check,
                   internal::Written& written);
  // Memory that the program has loaded, and its version, by parameter.
  using Pulled = std::map<std::size_t, std::pair<c10::Storage, std::int64_t>>;
  void pull_moved(const Pulled& taken = {});
  void compare_changes(bool whole);
  void check_copy(const internal::Unit& unit, const at::Tensor& flat) const;
  void check_copies();
  void compare_private();
  std::uint64_t bits_of_weights(bool with_apart) const;
  void take_module_changes();
  void empty_passes(bool forward);
  void collect();
  void update();
  void update_piece(int param, const internal::Piece& piece, const std::byte* gradient,
                    internal::WrittenCheck& check);
  double norm_of_shards();
  void publish(bool frozen);

  void each_whole(const Visit& visit) override;
  void take_over(const std::map<std::string, at::Tensor>& state) override;
  checkpoint::Slices slices(const Sharded::Placing& placing, Wanted wanted) override;
  void begin_load() override;
  void end_load() override;
  bool counts_held_apart() const override { return true; }
  void check_values() override;
  void take_loaded() override;
  void visit_parts(const internal::Unit& unit, const at::Tensor& shard, const std::string& suffix,
                   const Visit& visit) const;

  bool travels() const { return options_.stage >= 2 && paused_ == 0; }

  Group weights_;  // used only for gathers
  bool shared_;
  internal::Meter meter_;
  std::unique_ptr<internal::UnitMemory> memory_;
  internal::BufferBroadcast buffers_;
  std::unique_ptr<internal::Passes> passes_;  // null if no unit is gathered
  std::unique_ptr<internal::Gradients> reducer_;
  std::optional<internal::RunningBlocks> running_;  // with passes_
  bool in_backward_ = false;
  bool forward_pending_ = false;  // a forward pass with gradients had no backward pass yet
  bool left_ = false;             // the gradients of this step have been sent
  Pulled pulled_;                 // what held() has taken
};

}  // namespace weft::engine
