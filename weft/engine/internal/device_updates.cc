#include "weft/engine/internal/device_updates.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <variant>

#include "weft/base/error.h"

namespace weft::engine::internal {
namespace {

using Tensors = std::vector<at::Tensor>;

// The gradients with the penalties' part added.
Tensors regularized(const DeviceTensors& on, double l1, double l2) {
  Tensors gradients = on.gradients;
  if (l2 != 0) gradients = at::_foreach_add(gradients, on.weights, l2);
  if (l1 != 0) gradients = at::_foreach_add(gradients, at::_foreach_sign(on.weights), l1);
  return gradients;
}

void update(const kernels::Sgd& o, std::int64_t step, const DeviceTensors& on) {
  at::_fused_sgd_(on.weights, regularized(on, o.regularizer.l1, 0), on.state[0], o.regularizer.l2,
                  o.momentum, o.lr, o.dampening, o.nesterov,
                  /*maximize=*/false, /*is_first_step=*/step == 1);
}

void update(const kernels::Adam& o, std::int64_t step, const DeviceTensors& on) {
  const at::Tensor count =
      at::full({}, static_cast<double>(step), on.weights[0].options().dtype(at::kFloat));
  const Tensors steps(on.weights.size(), count);
  const bool decoupled = o.decoupled_decay != 0;
  const Tensors gradients = regularized(on, o.regularizer.l1, decoupled ? o.regularizer.l2 : 0);
  if (decoupled) {
    at::_fused_adamw_(on.weights, gradients, on.state[0], on.state[1], on.state[2], steps, o.lr,
                      o.beta1, o.beta2, o.decoupled_decay, o.eps, o.amsgrad, /*maximize=*/false);
  } else {
    at::_fused_adam_(on.weights, gradients, on.state[0], on.state[1], on.state[2], steps, o.lr,
                     o.beta1, o.beta2, o.regularizer.l2, o.eps, o.amsgrad, /*maximize=*/false);
  }
}

void update(const kernels::RmsProp& o, std::int64_t, const DeviceTensors& on) {
  const Tensors gradients = regularized(on, o.regularizer.l1, o.regularizer.l2);
  // The arrays that the options have, in the order of state_names().
  const std::size_t buffer = 1, mean = o.momentum > 0 ? 2 : 1;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& g = gradients[i];
    at::Tensor squares = on.state[0][i], weight = on.weights[i];
    squares.mul_(o.alpha).addcmul_(g, g, 1 - o.alpha);
    at::Tensor width = squares;
    if (o.centered) {
      at::Tensor average = on.state[mean][i];
      average.lerp_(g, 1 - o.alpha);
      width = squares.addcmul(average, average, -1);
    }
    width = width.sqrt().add_(o.eps);
    if (o.momentum > 0) {
      at::Tensor velocity = on.state[buffer][i];
      velocity.mul_(o.momentum).addcdiv_(g, width);
      weight.add_(velocity, -o.lr);
    } else {
      weight.addcdiv_(g, width, -o.lr);
    }
  }
}

void update(const kernels::Adagrad& o, std::int64_t step, const DeviceTensors& on) {
  const Tensors gradients = regularized(on, o.regularizer.l1, o.regularizer.l2);
  const double lr = o.lr / (1 + static_cast<double>(step - 1) * o.lr_decay);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor sum = on.state[0][i], weight = on.weights[i];
    sum.addcmul_(gradients[i], gradients[i]);
    weight.addcdiv_(gradients[i], sum.sqrt().add_(o.eps), -lr);
  }
}

void update(const kernels::Lion& o, std::int64_t, const DeviceTensors& on) {
  const Tensors gradients = regularized(on, o.regularizer.l1, o.regularizer.l2);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor mean = on.state[0][i], weight = on.weights[i];
    const at::Tensor direction = mean.lerp(gradients[i], 1 - o.beta1).sign_();
    weight.mul_(1 - o.lr * o.decoupled_decay).add_(direction, -o.lr);
    mean.lerp_(gradients[i], 1 - o.beta2);
  }
}

}  // namespace

void update_on_device(const optim::UpdateRule& rule, std::int64_t step, const DeviceTensors& on) {
  if (on.weights.empty()) return;
  const at::NoGradGuard no_grad;
  std::visit(
      [&](const auto& options) {
        if constexpr (requires { update(options, step, on); }) {
          update(options, step, on);
        } else {
          throw Error(Errc::kInvalidArgument,
                      "optimizer(): " + optim::name_of(rule) +
                          " is not supported for parameters on a device; keep the model on the "
                          "CPU, or use another optimizer");
        }
      },
      rule);
}

}  // namespace weft::engine::internal
