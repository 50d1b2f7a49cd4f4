// Rules over flat memory against torch::optim: float64 within 1e-12, float32 within 1e-6 (relative
// and absolute), over 8 steps.
#include "weft/optim/update_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/tensors.h"
#include "weft/engine/optimizer.h"

namespace weft::engine {
namespace update_rule_test {

using comm::wave;
using optim::FlatStep;
using optim::update_flat;
using optim::with_decay;

constexpr int64_t kCount = 19;

template <class Number, class TorchOptimizer, class Options>
void compare(const Options& options, const std::string& what) {
  const auto type = std::is_same_v<Number, double> ? at::kDouble : at::kFloat;
  const OptimizerSpec spec = optimizer_spec(options, {});
  at::Tensor expected = wave({kCount}, 0.3, type).requires_grad_(),
             actual = wave({kCount}, 0.3, type);
  TorchOptimizer optim(std::vector<at::Tensor>{expected}, options);
  std::vector<at::Tensor> state;
  for (std::size_t i = 0; i < state_names(spec.rule).size(); ++i)
    state.push_back(at::full({kCount}, spec.initial_accumulator, type));
  for (int step = 1; step <= 8; ++step) {
    const at::Tensor gradient = wave({kCount}, step, type);
    expected.mutable_grad() = gradient.clone();
    optim.step();
    FlatStep<Number> at{.weight = actual.data_ptr<Number>(),
                        .gradient = gradient.const_data_ptr<Number>(),
                        .count = kCount,
                        .step = step};
    for (std::size_t i = 0; i < state.size(); ++i) at.state[i] = state[i].data_ptr<Number>();
    update_flat(spec.rule, at);
  }
  const double most = type == at::kDouble ? 1e-12 : 1e-6;
  EXPECT_TRUE(at::allclose(actual, expected.detach(), most, most))
      << what << ": differs by " << (actual - expected.detach()).abs().max().item<double>();
}

template <class TorchOptimizer, class Options>
void compare_both(const Options& options, const std::string& what) {
  compare<double, TorchOptimizer>(options, what + " in float64");
  compare<float, TorchOptimizer>(options, what + " in float32");
}

TEST(UpdateRule, StepsAsTorchsOptimizersDo) {
  compare_both<torch::optim::SGD>(torch::optim::SGDOptions(0.1).weight_decay(0.1), "SGD");
  compare_both<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.2),
                                  "momentum");
  compare_both<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true),
                                  "Nesterov");
  compare_both<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-2), "RMSprop");
  compare_both<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1e-2).centered(true),
                                      "centered RMSprop");
  compare_both<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(1e-2).momentum(0.9).centered(true), "RMSprop with both");
  compare_both<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(1e-2).lr_decay(0.1).initial_accumulator_value(0.1), "Adagrad");
  compare_both<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).weight_decay(0.1), "Adam");
  compare_both<torch::optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true), "AMSGrad");
  compare_both<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2).weight_decay(0.1), "AdamW");
}

template <class TorchOptimizer, class Options>
void expect_refused(const Options& options, const std::string& why) {
  EXPECT_ANY_THROW(TorchOptimizer(std::vector<at::Tensor>{at::zeros({1})}, options)) << why;
  EXPECT_THAT(refusal([&] { optimizer_spec(options, {}); }), testing::HasSubstr(why));
}

TEST(UpdateRule, RefusesOptionsThatTorchRefuses) {
  using namespace torch::optim;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused<SGD>(SGDOptions(-1), "sgd has lr = -1");
  expect_refused<SGD>(SGDOptions(nan), "sgd has lr = ");
  expect_refused<SGD>(SGDOptions(1).momentum(-0.5), "momentum = -0.5; it must be at least 0");
  expect_refused<SGD>(SGDOptions(1).weight_decay(-1), "weight_decay = -1");
  expect_refused<SGD>(SGDOptions(1).nesterov(true), "nesterov needs a momentum");
  expect_refused<SGD>(SGDOptions(1).momentum(0.9).dampening(0.1).nesterov(true),
                      "nesterov needs a momentum above 0 and no dampening");
  expect_refused<RMSprop>(RMSpropOptions(1).alpha(-1), "rmsprop has alpha = -1");
  expect_refused<RMSprop>(RMSpropOptions(1).eps(-1), "eps = -1");
  expect_refused<Adagrad>(AdagradOptions(1).lr_decay(-1), "adagrad has lr_decay = -1");
  expect_refused<Adagrad>(AdagradOptions(1).initial_accumulator_value(-1),
                          "initial_accumulator_value of at least 0");
  expect_refused<Adam>(AdamOptions(1).betas({1, 0.9}),
                       "beta1 = 1; it must be at least 0 and below");
  expect_refused<AdamW>(AdamWOptions(1).betas({0.9, 1}), "beta2 = 1");
  expect_refused<AdamW>(AdamWOptions(1).weight_decay(-1), "weight_decay = -1");
}

TEST(UpdateRule, RefusesSuchOptionsOfRulesThatTorchDoesNotHave) {
  const auto refused = [](const UpdateRule& rule) {
    return refusal([&] { optimizer_spec(rule, {}); });
  };
  EXPECT_THAT(refused(kernels::Lion{.beta2 = 1}), testing::HasSubstr("lion has beta2 = 1"));
  EXPECT_THAT(refused(optim::Lars{.momentum = 0, .nesterov = true}),
              testing::HasSubstr("lars with nesterov needs a momentum"));
  EXPECT_THAT(refused(optim::Lamb{.beta1 = 1}), testing::HasSubstr("lamb has beta1 = 1"));
  EXPECT_THAT(refused(optim::Adafactor{.beta1 = 1}), testing::HasSubstr("adafactor has beta1"));
  EXPECT_THAT(refused(optim::Muon{.adam_lr = -1}), testing::HasSubstr("muon has adam_lr = -1"));
  EXPECT_EQ(refused(optim::Muon{.momentum = 0}), "accepted");
  EXPECT_THAT(refusal([] { ParamRules({.rule = kernels::Adam{.beta1 = 1}}, {"a"}); }),
              testing::HasSubstr("adam has beta1 = 1"));
}

TEST(ClipFactor, IsTorchsAlsoForNormsThatAreNotFinite) {
  for (const double value : {0.25, 3.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    at::Tensor one = at::zeros({1}, at::kDouble), other = at::zeros({1}, at::kDouble);
    one.mutable_grad() = at::full({1}, value, at::kDouble);
    other.mutable_grad() = at::ones({1}, at::kDouble);
    const double norm = torch::nn::utils::clip_grad_norm_({one, other}, 2.0),
                 factor = optim::clip_factor(norm, 2.0), torchs = other.grad().item<double>();
    if (std::isnan(torchs)) {
      EXPECT_TRUE(std::isnan(factor)) << value;
    } else {
      EXPECT_DOUBLE_EQ(factor, torchs) << value;
    }
  }
}

TEST(UpdateRule, WithNoDecayIsTheSameRuleWithDecayNone) {
  const auto decayed =
      optimizer_spec(torch::optim::AdamWOptions(1e-2).weight_decay(0.5), {.l1 = 0.5});
  const auto plain = optimizer_spec(torch::optim::AdamWOptions(1e-2).weight_decay(0), {});
  const auto run = [](const UpdateRule& rule) {
    double weight = 2, gradient = 0.5, mean = 0, square = 0;
    update_flat(
        rule, FlatStep<double>{
                  .weight = &weight, .gradient = &gradient, .state = {&mean, &square}, .count = 1});
    return weight;
  };
  EXPECT_EQ(run(with_decay(decayed.rule, 0)), run(plain.rule));
  EXPECT_NE(run(decayed.rule), run(plain.rule));
}

// By hand: torch's own groups are held against in data_parallel_test and plans_test.
TEST(ParamRules, TakeTheFirstGroupThatHasAParameter) {
  OptimizerSpec spec =
      optimizer_spec(torch::optim::AdamWOptions(0.5).weight_decay(0.25), {.l1 = 2});
  const auto is = [](const char* name) {
    return [name](const std::string& asked) { return asked == name; };
  };
  spec.groups = {{is("a"), 2, 4}, {is("b"), 0.5}, {is("a"), 8}};
  spec.no_decay = is("b");
  const ParamRules rules(spec, {"a", "b", "c"});
  const auto adam = [&](std::size_t param) {
    return std::get<kernels::Adam>(rules.of(param, spec.rule));
  };
  EXPECT_EQ(adam(0).lr, 1.0);
  EXPECT_EQ(adam(0).decoupled_decay, 1.0);
  EXPECT_EQ(adam(0).regularizer.l1, 8.0);
  EXPECT_EQ(adam(1).lr, 0.25);
  EXPECT_EQ(adam(1).decoupled_decay, 0.0);
  EXPECT_EQ(adam(2).lr, 0.5);
  EXPECT_EQ(adam(2).decoupled_decay, 0.25);
  spec.groups[0].rule =
      optimizer_spec(torch::optim::AdamWOptions(9).betas({0.5, 0.75}).weight_decay(0.125), {}).rule;
  const ParamRules with_own(spec, {"a", "c"});
  UpdateRule later = spec.rule;
  set_lr(later, 0.25);
  const auto own = std::get<kernels::Adam>(with_own.of(0, later));
  EXPECT_EQ(own.lr, 0.5) << "twice that of the others now, whatever its own";
  EXPECT_EQ(own.beta1, 0.5);
  EXPECT_EQ(own.decoupled_decay, 0.5) << "four times its own";
  EXPECT_EQ(std::get<kernels::Adam>(with_own.of(1, later)).beta1, 0.9);
  const auto refused = [&](const UpdateRule& rule) {
    spec.groups[0].rule = rule;
    return refusal([&] { ParamRules(spec, {"a"}); });
  };
  EXPECT_THAT(refused(kernels::Sgd{}), testing::HasSubstr("of the optimizer's kind"));
  EXPECT_THAT(refused(optimizer_spec(torch::optim::AdamWOptions(1).amsgrad(true), {}).rule),
              testing::HasSubstr("the same state"));
  spec.groups[0].lr_scale = -1;
  EXPECT_THAT(refused(spec.rule), testing::HasSubstr("at least 0"));
}

}  // namespace update_rule_test
}  // namespace weft::engine
