// Stage 0: every rank computes with all weights, and gradients are combined over the ranks by a
// transport.
//
//   backward() -> hook of each parameter -> Transport::ready      (nothing inside no_sync())
//   without an optimizer: the end of backward() -> Transport::finish: grad() holds the average
//   with an optimizer:    step()                -> Transport::finish: the weights are updated
//
// If ranks can share memory, weights and optimizer state exist once per host. Otherwise each rank
// has all of them.
#pragma once

#include <memory>
#include <vector>

#include "weft/engine/internal/company.h"
#include "weft/engine/internal/engine.h"
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
  Sharded::Memory memory() override;
  std::string describe() const override;

  // Gradient norm before clipping, of the last step that computed it.
  double norm() const { return norm_; }
  // Optimizer::state(), load_state().
  NamedTensors optimizer_state();
  void load_optimizer_state(const NamedTensors& state);

 private:
  // State of a parameter on this rank or on its host, in place.
  at::Tensor state_of(int param, std::size_t array) const;
  // True if this rank writes for its host. If weights are shared, one rank does.
  bool writes() const { return !shared_weights_ || group_.rank() == 0; }
  // "<name>.<array>" of all trainable parameters.
  void each_state(const std::function<void(const std::string& name, at::Tensor state)>& visit);
  void on_ready(int param) override;
  void end_backward();
  void begin_adding() override;
  void check_added();
  [[noreturn]] void refuse_to_add(int param);
  void drop_spent();
  void end_dropped();
  // After step(), the program may drop or replace them.
  bool gradients_count() const override { return passed_; }
  void each_whole(const Visit& visit) override;
  void take_over(const std::map<std::string, at::Tensor>& state) override;
  checkpoint::Slices slices(const Sharded::Placing& placing, Wanted wanted) override;
  void begin_load() override { settle(); }
  void end_load() override;
  void finish(double scale);
  void finish_whole(double scale);
  internal::WholePiece piece(std::size_t param) const;
  std::vector<internal::WholePiece> pieces() const;
  void forget();
  bool is_adasum() const { return options_.average == DataParallelOptions::Average::kAdasum; }
  // Null if the ranks combine gradients by messages.
  net::Host* host() const { return is_adasum() || devices_ ? nullptr : group_.host(); }
  void check_device_options() const;
  void use_on_device(double first_value);
  void share_rank_0();
  void watch_optimizer();
  void compare_before_optimizer();
  void look_at_module();
  void take_moved();
  bool counts_held_apart() const override { return shared_weights_; }
  void check_values() override;
  void take_loaded() override;
  void check_written();
  void note_written();
  void check_company() const;
  void take_module_changes();
  void end_module_changes();
  // Makes the transport that suits the group and the optimizer.
  void make_transport();
  void share_weights(std::vector<std::byte*>& weights);
  void place_state(std::vector<internal::Updates::Place>& places, std::size_t array);
  // Parts of flat memory begin at cache lines.
  static std::int64_t padded_bytes(const at::Tensor& tensor) {
    return (static_cast<std::int64_t>(tensor.nbytes()) + 63) / 64 * 64;
  }
  internal::TransportContext context(internal::Updates* updates);

  std::vector<at::Tensor> trained_params_, buffers_;
  std::vector<std::int64_t> offsets_;         // offsets of parameters in flat memory, in bytes
  std::int64_t bytes_ = 0, state_bytes_ = 0;  // of the weights, and of the optimizer state
  std::vector<at::Tensor> own_state_;
  std::optional<internal::Company> company_;
  std::unique_ptr<internal::Transport> transport_;
  std::vector<bool> ready_;  // by parameter, since the last finish
  bool devices_ = false;     // some ranks' parameters are on a device
  bool mixed_ = false;       // and others' are not
  bool any_ready_ = false;
  double backward_lr_ = 0;  // learning rate at the start of backward()
  bool passed_ = false;     // the ranks have made a backward pass since the last step
  bool reduced_ = false;    // and the sums of this step are computed
  internal::SpentGradients spent_;
  int added_to_ = -1;  // a parameter whose spent gradient made way for one of no_sync(); -1: none
  bool repeats_ = false;  // this step has found spent gradients
  bool dropped_ = false;  // the program has dropped the gradients that are with the transport
  bool shared_weights_ = false;
  bool private_weights_ = false;  // private weights although ranks share memory
  double norm_ = 0;
  std::int64_t updates_done_ = 0;  // also of an optimizer of torch
};

}  // namespace weft::engine
