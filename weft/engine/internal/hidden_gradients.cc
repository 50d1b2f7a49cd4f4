#include "weft/engine/internal/hidden_gradients.h"

#include <utility>

#include "weft/engine/parameter_cuts.h"

namespace weft::engine::internal {

HiddenGradients::HiddenGradients(const ParamList& params, std::string why)
    : params_(params), why_(std::move(why)), kept_(params.trained()) {}

HiddenGradients::~HiddenGradients() { show(); }

at::Tensor& HiddenGradients::grad_of(std::size_t param) const {
  return params_[param].tensor.mutable_grad();
}

void HiddenGradients::hide() {
  if (std::exchange(hidden_, true)) return;
  for (std::size_t param = refusing_.size(); param < params_.trained(); ++param) {
    refusing_.push_back(
        refusing(params_[param].tensor, "the gradient of '" + params_[param].name + "' " + why_));
  }
  for (std::size_t param = 0; param < params_.trained(); ++param)
    kept_[param] = std::exchange(grad_of(param), refusing_[param]);
}

void HiddenGradients::show() {
  if (!std::exchange(hidden_, false)) return;
  for (std::size_t param = 0; param < params_.trained(); ++param) {
    at::Tensor kept = std::exchange(kept_[param], {});
    if (grad_of(param).is_same(refusing_[param])) grad_of(param) = std::move(kept);
  }
}

const Param* HiddenGradients::changed() const {
  for (std::size_t param = 0; hidden_ && param < params_.trained(); ++param) {
    if (!grad_of(param).is_same(refusing_[param])) return &params_[param];
  }
  return nullptr;
}

}  // namespace weft::engine::internal
