// While this lives, operations of this thread compute in a narrower type.
#pragma once

#include <ATen/autocast_mode.h>

#include "weft/parallel/compose/plan.h"

namespace weft::parallel {

class Autocast {
 public:
  explicit Autocast(Precision precision) : on_(precision != Precision::kAsItIs) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU,
                                     precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool on_;
};

}  // namespace weft::parallel
