// Compares 8 steps of update_on_device() with update_flat(): within 1e-6 in float32 and 1e-12 in
// float64. The tests run on the CPU, for which libtorch has the same operations.
#include "weft/engine/internal/device_updates.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/tensors.h"
#include "weft/optim/update_rule.h"

namespace weft::engine::internal {
namespace device_updates_test {

using comm::wave;
using optim::UpdateRule;

template <class Number>
void flat_step(const UpdateRule& rule, std::int64_t step, DeviceTensors& on) {
  for (std::size_t i = 0; i < on.weights.size(); ++i) {
    optim::FlatStep<Number> at{.weight = on.weights[i].data_ptr<Number>(),
                               .gradient = on.gradients[i].const_data_ptr<Number>(),
                               .count = on.weights[i].numel(),
                               .step = step};
    for (std::size_t array = 0; array < at.state.size(); ++array) {
      if (!on.state[array].empty()) at.state[array] = on.state[array][i].data_ptr<Number>();
    }
    optim::update_flat(rule, at);
  }
}

void compare(const UpdateRule& rule, at::ScalarType type) {
  DeviceTensors device, flat;
  for (const std::int64_t count : {1, 19, 300}) {
    for (DeviceTensors* const on : {&device, &flat}) {
      on->weights.push_back(wave({count}, 0.3, type));
      for (std::size_t array = 0; array < optim::state_names(rule).size(); ++array)
        on->state[array].push_back(at::zeros({count}, type));
    }
  }
  for (int step = 1; step <= 8; ++step) {
    device.gradients.clear();
    for (const at::Tensor& weight : device.weights)
      device.gradients.push_back(wave({weight.numel()}, step, type));
    flat.gradients = device.gradients;
    const std::vector<at::Tensor> before{device.gradients[1].clone()};
    update_on_device(rule, step, device);
    EXPECT_TRUE(at::equal(device.gradients[1], before[0])) << "the gradient has changed";
    if (type == at::kDouble) {
      flat_step<double>(rule, step, flat);
    } else {
      flat_step<float>(rule, step, flat);
    }
  }
  const double most = type == at::kDouble ? 1e-12 : 1e-6;
  for (std::size_t i = 0; i < flat.weights.size(); ++i) {
    EXPECT_TRUE(at::allclose(device.weights[i], flat.weights[i], most, most))
        << optim::name_of(rule) << " in " << type << " differs by "
        << (device.weights[i] - flat.weights[i]).abs().max().item<double>();
    for (std::size_t array = 0; array < optim::state_names(rule).size(); ++array)
      EXPECT_TRUE(at::allclose(device.state[array][i], flat.state[array][i], 10 * most, most));
  }
}

TEST(DeviceUpdates, StepsAsOverFlatMemory) {
  const kernels::Regularizer both{.l1 = 0.05, .l2 = 0.1};
  const std::vector<UpdateRule> rules{
      kernels::Sgd{.lr = 0.1},
      kernels::Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .regularizer = both},
      kernels::Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true},
      kernels::RmsProp{.lr = 0.01, .regularizer = both},
      kernels::RmsProp{.lr = 0.01, .momentum = 0.9},
      kernels::RmsProp{.lr = 0.01, .centered = true},
      kernels::RmsProp{.lr = 0.01, .momentum = 0.9, .centered = true},
      kernels::Adagrad{.lr = 0.01, .lr_decay = 0.1, .regularizer = both},
      kernels::Adam{.lr = 0.01, .regularizer = both},
      kernels::Adam{.lr = 0.01, .amsgrad = true},
      kernels::Adam{.lr = 0.01, .decoupled_decay = 0.1},
      kernels::Adam{.lr = 0.01, .decoupled_decay = 0.1, .regularizer = both},
      kernels::Lion{.lr = 0.01, .decoupled_decay = 0.1, .regularizer = both}};
  for (const UpdateRule& rule : rules) {
    compare(rule, at::kFloat);
    compare(rule, at::kDouble);
  }
}

TEST(DeviceUpdates, RefusesRulesOfWholeTensors) {
  DeviceTensors on;
  on.weights = on.gradients = {at::ones({3})};
  expect_refused([&] { update_on_device(optim::Lamb{}, 1, on); }, Errc::kInvalidArgument, "lamb");
}

}  // namespace device_updates_test
}  // namespace weft::engine::internal
