#include "weft/parallel/tensor/norm.h"

#include <torch/nn/module.h>
#include <torch/types.h>

namespace weft::parallel {

LayerNormImpl::LayerNormImpl(NormOptions options_, TensorParallel tp)
    : options(options_), tp_(std::move(tp)) {
  LayerNormImpl::reset();
}

void LayerNormImpl::reset() {
  weight = register_parameter("weight", torch::ones({options.features}));
  bias = options.bias ? register_parameter("bias", torch::zeros({options.features}))
                      : register_parameter("bias", {}, /*requires_grad=*/false);
}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) {
  return torch::layer_norm(x, {options.features}, use_whole(weight, options.sequence, tp_),
                           use_whole(bias, options.sequence, tp_), options.eps);
}

RMSNormImpl::RMSNormImpl(NormOptions options_, TensorParallel tp)
    : options(options_), tp_(std::move(tp)) {
  RMSNormImpl::reset();
}

void RMSNormImpl::reset() {
  weight = register_parameter("weight", torch::ones({options.features}));
}

at::Tensor RMSNormImpl::forward(const at::Tensor& x) {
  return torch::rms_norm(x, {options.features}, use_whole(weight, options.sequence, tp_),
                         options.eps);
}

}  // namespace weft::parallel
