// Saves the thread's autocast state, on the CPU and on CUDA devices, at construction.
#pragma once

#include <ATen/autocast_mode.h>

namespace weft::parallel::internal {

class AutocastState {
 public:
  // Restores the saved state while this lives.
  class Use;

 private:
  struct Of {
    explicit Of(at::DeviceType device_) : device(device_) {}
    bool operator==(const Of&) const = default;

    at::DeviceType device;
    bool on = at::autocast::is_autocast_enabled(device);
    at::ScalarType type = at::autocast::get_autocast_dtype(device);
  };

  bool differs(const AutocastState& other) const {
    return !(cpu_ == other.cpu_ && cuda_ == other.cuda_);
  }
  void set() const {
    for (const Of& one : {cpu_, cuda_}) {
      at::autocast::set_autocast_enabled(one.device, one.on);
      at::autocast::set_autocast_dtype(one.device, one.type);
    }
  }

  Of cpu_{at::kCPU}, cuda_{at::kCUDA};
};

class AutocastState::Use {
 public:
  explicit Use(const AutocastState& state) {
    if (!state.differs(now_)) return;
    changed_ = true;
    state.set();
  }
  ~Use() {
    if (!changed_) return;
    at::autocast::clear_cache();
    now_.set();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  const AutocastState now_ = {};
  bool changed_ = false;
};

}  // namespace weft::parallel::internal
