// Stage 0: every rank computes with all weights, and gradients are combined over the ranks by a
// transport.
//
//   backward() -> hook of each parameter -> Transport::ready      (nothing inside no_sync())
//   without an optimizer: the end of backward() -> Transport::finish: grad() holds the average
//   with an optimizer:    step()                -> Transport::finish: the weights are updated
//
// If ranks can share memory, weights and optimizer state exist once per host. Otherwise each rank
// has all of them (replica_memory.h).
//
// The changes of the module between two steps (replica_changes.cc) are no class of their own: they
// concern the weights, the transport, the optimizer, and the order of a step.
#pragma once

#include <memory>
#include <vector>

#include "weft/engine/internal/engine.h"
#include "weft/engine/internal/replica_memory.h"
#include "weft/engine/internal/spent_gradients.h"
#include "weft/engine/internal/transport.h"

namespace weft::engine {

class Replica final : public Engine {
 public:
  // Collective: checks that all ranks have the same model and copies rank 0's values to all.
  explicit Replica(Context context);
  // Collective; call it once. Without it, grad() gets the averages. With it, grad() is this rank's
  // part of them, and hidden if there are several ranks, or with `hides`.
  void use_optimizer(OptimizerSpec spec, bool hides = false);

  void skip_batch() override {
    stepped_ = false;
    passed_ = true;
  }
  void send_gradients() override { hide_gradients(); }
  void await_gradients() override;
  void each_gradient(
      const std::function<void(const std::string&, const at::Tensor&)>& take) override;
  double grad_norm() override;
  Sharded::Finite are_finite() override;
  void step(double scale) override;
  void zero_grad() override;
  void settle() override;
  // Not collective: for the caller of the next step.
  void drop_own_gradients();
  NamedTensors gradients() override;
  checkpoint::Slices codec_slices();
  // On all ranks together.
  bool load_codec(const checkpoint::Reader& saved);
  Sharded::Memory memory() override { return memory_.used(); }
  std::string describe() const override;

  // Gradient norm before clipping, of the last step that computed it.
  double norm() const { return norm_; }
  // Optimizer::state(), load_state().
  NamedTensors optimizer_state();
  void load_optimizer_state(const NamedTensors& state);

 private:
  void on_ready(int param) override;
  void end_backward();
  void begin_adding() override;
  // Without weft's optimizer: a second sum would count the first one once for each rank.
  bool counts_sums_again() const {
    using Average = DataParallelOptions::Average;
    return group_.size() > 1 && (options_.average == Average::kSum || is_adasum());
  }
  // Refuses to add to the gradient of a parameter; -1: none.
  void check_added(int param);
  void drop_spent();
  void end_dropped();
  void look_at_averages();
  // After step(), the program may drop or replace them.
  bool gradients_count() const override { return passed_; }
  void each_whole(const Visit& visit) override;
  void take_over(const std::map<std::string, at::Tensor>& state) override;
  checkpoint::Slices slices(const Sharded::Placing& placing, Wanted wanted) override {
    return memory_.slices(placing, wanted, watch());
  }
  void begin_load() override { settle(); }
  void end_load() override;
  void finish(double scale);
  void finish_whole(double scale);
  void forget();
  bool is_adasum() const { return options_.average == DataParallelOptions::Average::kAdasum; }
  // Null if the ranks combine gradients by messages.
  net::Host* host() const { return is_adasum() || has_devices() ? nullptr : group_.host(); }
  // Some ranks' parameters are on a device.
  bool has_devices() const { return device_ranks_ > 0; }
  // And others' are not.
  bool has_unlike_devices() const { return has_devices() && device_ranks_ < group_.size(); }
  void check_device_options() const;
  void watch_optimizer();
  // Compares values that the program has written, before the watch forgets them. Collective.
  void compare_written();
  void look_at_module();
  void take_moved();
  bool counts_held_apart() const override { return memory_.is_shared(); }
  void check_values() override;
  void take_loaded() override;
  void check_written();
  void note_written();
  void check_company() const;
  void take_module_changes();
  void end_module_changes();
  // Makes the transport that suits the group and the optimizer.
  void make_transport();
  internal::TransportContext context(internal::Updates* updates);

  std::vector<at::Tensor> trained_params_, buffers_;
  internal::ReplicaMemory memory_;
  std::unique_ptr<internal::Transport> transport_;
  std::vector<bool> ready_;  // by parameter, since the last finish
  int device_ranks_ = 0;     // number of ranks whose parameters are on a device
  bool any_ready_ = false;
  double backward_lr_ = 0;  // learning rate at the start of backward()
  bool passed_ = false;     // the ranks have made a backward pass since the last step
  bool reduced_ = false;    // and the sums of this step are computed
  internal::SpentGradients spent_;
  bool dropped_ = false;  // the program has dropped the gradients that are with the transport
  // Without weft's optimizer: a codec waits for what the program does with the last averages.
  bool averaged_ = false;
  double norm_ = 0;
  std::int64_t updates_done_ = 0;  // also of an optimizer of torch
};

}  // namespace weft::engine
