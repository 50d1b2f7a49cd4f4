// Autocast's state and its cache around runs that are repeated.
#pragma once

#include <ATen/autocast_mode.h>

namespace weft::parallel::internal {

// Saves the thread's autocast state, on the CPU and on CUDA devices, at construction.
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

// Keeps autocast from caching casts while this lives. A later forward would use a cast that was
// made without a graph, and its weight would get no gradient.
class WithoutCachedCasts {
 public:
  WithoutCachedCasts() { at::autocast::set_autocast_cache_enabled(false); }
  ~WithoutCachedCasts() { at::autocast::set_autocast_cache_enabled(before_); }
  WithoutCachedCasts(const WithoutCachedCasts&) = delete;
  WithoutCachedCasts& operator=(const WithoutCachedCasts&) = delete;

 private:
  const bool before_ = at::autocast::is_autocast_cache_enabled();
};

}  // namespace weft::parallel::internal
