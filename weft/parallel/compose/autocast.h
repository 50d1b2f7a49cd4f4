// While this lives, operations of this thread on devices of one type compute in a narrower type.
#pragma once

#include <ATen/autocast_mode.h>

#include "weft/parallel/compose/plan.h"

namespace weft::parallel {

class Autocast {
 public:
  explicit Autocast(Precision precision, at::DeviceType device = at::kCPU)
      : on_(precision != Precision::kAsItIs), device_(device) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_,
                                     precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool on_;
  const at::DeviceType device_;
};

}  // namespace weft::parallel
