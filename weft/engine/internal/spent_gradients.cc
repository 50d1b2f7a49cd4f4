#include "weft/engine/internal/spent_gradients.h"

#include <ATen/ATen.h>

#include "weft/engine/internal/change_marks.h"
#include "weft/engine/internal/index.h"

namespace weft::engine::internal {

void SpentGradients::note(const std::vector<at::Tensor>& params, bool any_values) {
  any_values_ = any_values;
  spent_.clear();
  for (const at::Tensor& param : params) {
    const at::Tensor& gradient = param.grad();
    spent_.push_back(
        {Weak(gradient.getIntrusivePtr()), gradient.defined() ? gradient._version() : 0});
  }
}

bool SpentGradients::is_spent(std::size_t param, const at::Tensor& gradient) const {
  if (!gradient.defined()) return false;
  const Spent& spent = spent_[param];
  return (spent.gradient._unsafe_get_target() == gradient.unsafeGetTensorImpl() &&
          spent.version == gradient._version()) ||
         (any_values_ && !is_zeros(gradient));
}

int SpentGradients::first(const std::vector<at::Tensor>& params) const {
  for (std::size_t param = 0; param < spent_.size(); ++param) {
    if (is_spent(param, params[param].grad())) return static_cast<int>(param);
  }
  return -1;
}

int SpentGradients::begin_adding(const std::vector<at::Tensor>& params, bool may_be_dropped) {
  if (!spent_.empty()) {
    const int param = first(params);
    // The program may drop the new gradients too, as those of a discriminator behind a generator.
    // step() tells.
    if (param >= 0 && !may_be_dropped) return param;
    if (param >= 0) {
      added_to_ = param;
      drop_all(params);
    }
    spent_.clear();
  }
  return may_be_dropped ? -1 : take_added(params);
}

int SpentGradients::take_added(const std::vector<at::Tensor>& params) {
  const int param = std::exchange(added_to_, -1);
  return param >= 0 && params[index(param)].grad().defined() ? param : -1;
}

bool SpentGradients::drop_all(const std::vector<at::Tensor>& params) {
  bool any = false;
  for (std::size_t param = 0; param < spent_.size(); ++param) {
    if (!is_spent(param, params[param].grad())) continue;
    any = true;
    params[param].mutable_grad().reset();
  }
  spent_.clear();
  return any;
}

}  // namespace weft::engine::internal
