#include "weft/engine/internal/gradient_watch.h"

#include <ATen/ATen.h>

#include <utility>

#include "weft/base/error.h"
#include "weft/engine/internal/index.h"

namespace weft::engine::internal {

void GradientWatch::note(int param) {
  const at::Tensor& gradient = params_[index(param)].tensor.grad();
  if (gradient.defined())
    noted_[index(param)] = {gradient, version_of(gradient), sample_lines(gradient, 0)};
}

void GradientWatch::check() {
  const bool values = !std::exchange(checked_, true);
  for (std::size_t param = 0; param < noted_.size(); ++param) {
    const Noted& noted = noted_[param];
    if (!noted.gradient.defined()) continue;
    const at::Tensor& now = params_[param].tensor.grad();
    if (now.is_same(noted.gradient) && version_of(now) == noted.version &&
        (!values || sample_lines(now, 0) == noted.lines))
      continue;
    throw Error(
        Errc::kInvalidArgument,
        "the gradient of '" + params_[param].name +
            "' was changed between backward() and step(), but step() averages it over the ranks "
            "first; to clip, use max_grad_norm of the optimizer, and to change averages, use an "
            "optimizer of torch::optim");
  }
}

void GradientWatch::forget() {
  for (Noted& noted : noted_) noted.gradient.reset();
  checked_ = false;
}

}  // namespace weft::engine::internal
