#include "weft/parallel/tensor/linear.h"

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "weft/parallel/tensor/internal/initial.h"
#include "weft/parallel/tensor/internal/overlap.h"
#include "weft/parallel/tensor/internal/slices.h"

namespace weft::parallel {

LinearImpl::LinearImpl(LinearOptions options_, TensorParallel tp)
    : options(options_), tp_(std::move(tp)) {
  WEFT_REQUIRE(options.in > 0 && options.out > 0, "Linear: in and out must be at least 1");
  WEFT_REQUIRE(options.chunks > 0, "Linear: chunks must be at least 1");
  if (options.split == Split::kColumn && !options.pad)
    even_part("Linear: outputs", options.out, tp_.size());
  if (options.split == Split::kRow) even_part("Linear: inputs", options.in, tp_.size());
  LinearImpl::reset();
}

std::map<std::string, Slice> LinearImpl::slices() const {
  return internal::slices_of(options.split, options.out, options.in, options.bias);
}

void LinearImpl::reset() {
  const auto split = slices();
  const auto mine = [&](const char* name, const at::Tensor& whole) {
    return internal::part_of(split, name, whole, tp_);
  };
  weight = register_parameter(
      "weight",
      mine("weight", internal::draw_weight({options.out, options.in}, options.normal, tp_)));
  if (!options.bias) {
    bias = register_parameter("bias", {}, /*requires_grad=*/false);
    return;
  }
  bias = register_parameter(
      "bias", mine("bias", internal::draw_bias(options.out, options.in, options.normal, tp_)));
}

at::Tensor in_product_type(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  const bool is_on = at::autocast::is_autocast_enabled(device) && x.scalar_type() == at::kFloat;
  return is_on ? x.to(at::autocast::get_autocast_dtype(device)) : x;
}

at::Tensor LinearImpl::multiply(const at::Tensor& x) const {
  return torch::linear(x, weight, bias);
}

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  if (tp_.size() == 1 || options.split == Split::kNone) return multiply(x);
  if (options.split == Split::kColumn) {
    const at::Tensor y = multiply(enter_split(x, options.sequence, tp_));
    return options.gather_output ? gather_from(y, -1, tp_).narrow(-1, 0, options.out) : y;
  }
  const at::Tensor part = options.input_is_parallel ? x : scatter_to(x, -1, tp_);
  const at::Tensor y =
      internal::multiply_and_leave(part, weight, {options.sequence, options.chunks}, tp_);
  return bias.defined() ? y + use_whole(bias, options.sequence, tp_) : y;
}

}  // namespace weft::parallel
