#include "weft/parallel/tensor/conv.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include "weft/parallel/tensor/internal/initial.h"
#include "weft/parallel/tensor/internal/slices.h"

namespace weft::parallel {

Conv2dImpl::Conv2dImpl(Conv2dOptions options_, TensorParallel tp)
    : options(options_), tp_(std::move(tp)) {
  WEFT_REQUIRE(options.in > 0 && options.out > 0 && options.kernel > 0,
               "Conv2d: channels and kernel must be at least 1");
  if (options.split == Split::kColumn)
    even_part("Conv2d: output channels", options.out, tp_.size());
  if (options.split == Split::kRow) even_part("Conv2d: input channels", options.in, tp_.size());
  Conv2dImpl::reset();
}

std::map<std::string, Slice> Conv2dImpl::slices() const {
  return internal::slices_of(options.split, options.out, options.in, options.bias);
}

void Conv2dImpl::reset() {
  const auto split = slices();
  const auto mine = [&](const char* name, const at::Tensor& whole) {
    return internal::part_of(split, name, whole, tp_);
  };
  const std::int64_t k = options.kernel;
  weight = register_parameter(
      "weight", mine("weight", internal::draw_weight({options.out, options.in, k, k}, 0, tp_)));
  bias =
      options.bias
          ? register_parameter(
                "bias", mine("bias", internal::draw_bias(options.out, options.in * k * k, 0, tp_)))
          : register_parameter("bias", {}, /*requires_grad=*/false);
}

at::Tensor Conv2dImpl::forward(const at::Tensor& x) {
  const auto convolve = [&](const at::Tensor& input, const at::Tensor& with) {
    return torch::conv2d(input, weight, with, options.stride, options.padding, options.dilation);
  };
  if (tp_.size() == 1 || options.split == Split::kNone) return convolve(x, bias);
  if (options.split == Split::kColumn) {
    const at::Tensor y = convolve(copy_to(x, tp_), bias);
    return options.gather_output ? gather_from(y, 1, tp_) : y;
  }
  const at::Tensor y =
      reduce_from(convolve(options.input_is_parallel ? x : scatter_to(x, 1, tp_), {}), tp_);
  return bias.defined() ? y + bias.view({1, -1, 1, 1}) : y;
}

}  // namespace weft::parallel
