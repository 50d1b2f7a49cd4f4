// Stage 0: every rank computes with all weights, and gradients are combined over the ranks by a
// transport.
//
//   backward() -> hook of each parameter -> Transport::ready      (nothing inside no_sync())
//   without an optimizer: the end of backward() -> Transport::finish: grad() holds the average
//   with an optimizer:    step()                -> Transport::finish: the weights are updated
//
// Weights and optimizer state lie once a host, in memory that its ranks share, where they can; else
// whole on each rank.
#pragma once

#include <memory>
#include <vector>

#include "weft/engine/internal/engine.h"
#include "weft/engine/internal/transport.h"

namespace weft::parallel {

class Replica final : public Engine {
 public:
  // Collective: checks the ranks against each other, gives everybody rank 0's values.
  explicit Replica(Subject subject);
  // Collective, once. Without it grad() gets the averages.
  void use_optimizer(OptimizerSpec spec);

  void skip_batch() override {
    stepped_ = false;
    passed_ = true;
  }
  void send_gradients() override {}
  void await_gradients() override;
  void each_gradient(
      const std::function<void(const std::string&, const at::Tensor&)>& take) override;
  double grad_norm() override;
  void step(double scale) override;
  void zero_grad() override;
  void settle() override;
  // Not collective: for who steps next.
  void drop_own_gradients();
  NamedTensors gradients() override;
  checkpoint::Slices codec_slices() override;
  bool load_codec(const checkpoint::Reader& saved) override {
    return transport_->load_codec(saved);
  }
  Sharded::Memory memory() override;
  std::string describe() const override;

  // Before clipping, of the last step that had to know it.
  double norm() const { return norm_; }
  // Optimizer::state(), load_state().
  NamedTensors optimizer_state();
  void load_optimizer_state(const NamedTensors& state);

 private:
  // This rank's state of a parameter, or its host's, in place.
  at::Tensor state_of(int param, std::size_t array) const;
  // True where this rank writes for its host: one does, where weights are shared.
  bool writes() const { return !shared_weights_ || group_.rank() == 0; }
  // "<name>.<array>" of all that are trained.
  void each_state(const std::function<void(const std::string& name, at::Tensor state)>& visit);
  void on_ready(int param) override;
  void each_whole(const Visit& visit) override;
  void take_over(const std::map<std::string, at::Tensor>& state) override;
  checkpoint::Slices slices(const Sharded::Placing& placing, Wanted wanted) override;
  void end_load() override;
  void finish(double scale);
  void forget();
  // As the group and the optimizer want it.
  void make_transport();
  void share_weights(std::vector<std::byte*>& weights);
  internal::Subject subject(internal::Updates* updates);

  std::vector<at::Tensor> trained_params_, buffers_;
  std::vector<std::int64_t> offsets_;  // of parameters in flat memory, in bytes
  std::int64_t bytes_ = 0;
  std::vector<at::Tensor> own_state_;
  std::unique_ptr<internal::Transport> transport_;
  std::vector<bool> ready_;  // since the last finish
  bool any_ready_ = false;
  bool passed_ = false;   // the ranks have made a backward pass since the last step
  bool reduced_ = false;  // and the sums of this step are known
  bool shared_weights_ = false;
  bool private_weights_ = false;  // although ranks share memory
  double norm_ = 0;
};

}  // namespace weft::parallel
