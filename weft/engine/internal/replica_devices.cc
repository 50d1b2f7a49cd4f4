// Replicas with parameters on devices.
#include <ATen/ATen.h>

#include "weft/engine/internal/replica.h"

namespace weft::engine {

void Replica::check_device_options() const {
  const auto refuse = [](bool found, const char* what) {
    WEFT_REQUIRE(!found, std::string("data_parallel: ") + what +
                             " is not supported with parameters on a device; leave it out, or "
                             "keep the model on the CPU");
  };
  WEFT_REQUIRE(!mixed_ || !group_.has_device_backend(),
               "data_parallel: transport nccl needs a device on each rank, and some ranks' "
               "parameters are on the CPU; use transport auto");
  refuse(options_.data_parallel.codec != "none", "a codec");
  refuse(is_adasum(), "adasum");
  refuse(options_.weights == Weights::kShared, "weights = shared");
}

// Ranks on unlike devices round equal numbers differently. So all take rank 0's weights and state.
void Replica::share_rank_0() {
  if (!mixed_) return;
  const at::NoGradGuard guard;
  const auto take = [&](at::Tensor tensor) { group_.broadcast(tensor, 0); };
  for (const at::Tensor& param : trained_params_) take(param.detach());
  each_state([&](const std::string&, const at::Tensor& state) { take(state); });
}

// Weights and optimizer state stay on the device.
void Replica::use_on_device(double first_value) {
  for (std::size_t i = 0; i < trained_; ++i) {
    std::vector<at::Tensor> state;
    for (std::size_t array = 0; array < updates_->arrays_of(static_cast<int>(i)); ++array) {
      state.push_back(at::full_like(trained_params_[i].detach(), array == 0 ? first_value : 0.0));
      state_bytes_ += static_cast<std::int64_t>(state.back().nbytes());
    }
    updates_->put_on_device(static_cast<int>(i), trained_params_[i].detach(), std::move(state));
  }
  make_transport();
  if (group_.size() > 1) group_.barrier();
  watch_optimizer();
}

}  // namespace weft::engine
