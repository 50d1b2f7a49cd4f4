// Saves the thread's CPU autocast state at construction.
#pragma once

#include <ATen/autocast_mode.h>

namespace weft::parallel::internal {

class AutocastState {
 public:
  // Restores the saved state while this lives.
  class Use;

 private:
  bool differs(const AutocastState& other) const {
    return on_ != other.on_ || type_ != other.type_;
  }
  void set() const {
    at::autocast::set_autocast_enabled(at::kCPU, on_);
    at::autocast::set_autocast_dtype(at::kCPU, type_);
  }

  bool on_ = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType type_ = at::autocast::get_autocast_dtype(at::kCPU);
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
