#include "weft/engine/internal/gradient_hooks.h"

#include <ATen/ATen.h>

#include <utility>

#include "weft/engine/internal/index.h"
#include "weft/engine/internal/ready_hook.h"

namespace weft::engine::internal {

void GradientHooks::install(std::function<void()> before,
                            const std::function<void(int param)>& ready) {
  before_ = std::move(before);
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    add_ready_hook(params_[i].tensor, [ready, param = static_cast<int>(i)] { ready(param); });
  }
  commit();
}

void GradientHooks::commit() {
  for (std::size_t i = 0; i < params_.trained(); ++i)
    ensure_before_hook(hooked_[i], params_[i].tensor, before_);
}

void GradientHooks::note(int param) {
  const at::Tensor& gradient = params_[index(param)].tensor.grad();
  if (gradient.defined()) versions_[index(param)] = gradient._version();
}

// zero_grad() resets them, or fills them with zeros.
bool GradientHooks::are_dropped() const {
  for (std::size_t i = 0; i < params_.trained(); ++i) {
    const at::Tensor& gradient = params_[i].tensor.grad();
    if (!gradient.defined()) continue;
    // An equal version means that nothing has written to it since backward(). Only others are read.
    if (gradient._version() == versions_[i]) return false;
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    if (values.count_nonzero().item<std::int64_t>() > 0) return false;
  }
  return true;
}

}  // namespace weft::engine::internal
