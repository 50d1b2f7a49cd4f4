#include "weft/ps/table/rule.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "weft/base/random.h"
#include "weft/base/testing/refusal.h"

namespace weft::ps {
namespace rule_test {

constexpr std::int64_t kCount = 37, kSteps = 100;

// One element in float64: weight, state, and the equation of a rule.
struct Element {
  double w = 0;
  std::array<double, 3> state{};
};
using Equation = std::function<void(Element&, double g, double t)>;

// Applies the rule and the equation to the same gradients, and compares the weights.
void expect_equation(const RowRule& rule, const Equation& equation, double first_state = 0) {
  Random random(7);
  const auto arrays = static_cast<std::size_t>(state_arrays(rule));
  std::vector<float> weights(kCount), state(arrays * kCount), gradient(kCount);
  std::vector<Element> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    weights[i] = 2 * random.uniform_float() - 1;
    expected[i].w = weights[i];
    expected[i].state[0] = first_state;
  }
  const RowValues row{weights.data(), state.data(), kCount};
  init_state(rule, row);
  for (std::int64_t t = 1; t <= kSteps; ++t) {
    for (float& g : gradient) g = random.uniform_float() - 0.4f;
    update_row(rule, row, gradient.data(), t);
    for (std::size_t i = 0; i < kCount; ++i) {
      equation(expected[i], gradient[i], static_cast<double>(t));
      ASSERT_NEAR(weights[i], expected[i].w, 2e-6 + 2e-5 * std::abs(expected[i].w))
          << rule_name(rule) << ", step " << t << ", element " << i;
    }
  }
}

TEST(RowRule, AddAddsTheDelta) {
  expect_equation(Add{}, [](Element& e, double g, double) { e.w += g; });
}

TEST(RowRule, SgdFollowsItsEquationWithAndWithoutMomentum) {
  expect_equation(kernels::Sgd{.lr = 0.1}, [](Element& e, double g, double) { e.w -= 0.1 * g; });
  expect_equation(kernels::Sgd{.lr = 0.1, .momentum = 0.9}, [](Element& e, double g, double) {
    e.state[0] = 0.9 * e.state[0] + g;
    e.w -= 0.1 * e.state[0];
  });
}

TEST(RowRule, AdagradFollowsDuchiHazanSinger) {
  const Adagrad adagrad{.rule = {.lr = 0.5, .eps = 1e-8}, .initial_accumulator = 0.25};
  expect_equation(
      adagrad,
      [](Element& e, double g, double) {
        e.state[0] += g * g;
        e.w -= 0.5 * g / (std::sqrt(e.state[0]) + 1e-8);
      },
      0.25);
}

TEST(RowRule, AdamFollowsKingmaBa) {
  expect_equation(kernels::Adam{.lr = 0.01}, [](Element& e, double g, double t) {
    auto& [m, v, unused] = e.state;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    e.w -= 0.01 * m / (1 - std::pow(0.9, t)) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
  });
}

// The equations of algorithm 1 as they stand there, from the z of the first weight.
TEST(RowRule, FtrlFollowsAlgorithmOneOfMcMahan) {
  const Ftrl ftrl{.alpha = 0.3, .beta = 1, .l1 = 0.5, .l2 = 0.1};
  const double curvature = ftrl.beta / ftrl.alpha + ftrl.l2;
  bool began = false;
  std::size_t zeros = 0, at = 0;
  expect_equation(ftrl, [&](Element& e, double g, double t) {
    auto& [z, n, unused] = e.state;
    if (t == 1) z = -e.w * curvature - (e.w > 0 ? ftrl.l1 : -ftrl.l1);
    began = true;
    const double sigma = (std::sqrt(n + g * g) - std::sqrt(n)) / ftrl.alpha;
    z += g - sigma * e.w;
    n += g * g;
    const double sign = z > 0 ? 1 : -1;
    e.w = std::abs(z) <= ftrl.l1
              ? 0
              : -(z - sign * ftrl.l1) / ((ftrl.beta + std::sqrt(n)) / ftrl.alpha + ftrl.l2);
    if (e.w == 0) ++zeros;
    ++at;
  });
  EXPECT_TRUE(began);
  EXPECT_GT(zeros, 10u) << "l1 makes weights 0, of " << at;
}

TEST(RowRule, FtrlKeepsFirstWeightsUntilAGradientComes) {
  const RowRule rule = Ftrl{.alpha = 0.05, .beta = 1, .l1 = 0.01, .l2 = 0.5};
  std::vector<float> weights{0.25f, -1.5f, 0.0f, 1e-3f};
  const std::vector<float> before = weights, gradient(4);
  std::vector<float> state(8);
  const RowValues row{weights.data(), state.data(), 4};
  init_state(rule, row);
  update_row(rule, row, gradient.data(), 1);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(weights[i], before[i], 1e-6 * std::abs(before[i])) << i;
}

TEST(RowRule, NumbersOutOfRangeAreRefused) {
  const std::array<std::pair<RowRule, const char*>, 8> wrong{{
      {kernels::Sgd{.lr = NAN}, "sgd: lr = null"},
      {kernels::Sgd{.momentum = 1}, "sgd: momentum = 1"},
      {kernels::Sgd{.nesterov = true}, "nesterov needs a momentum"},
      {Adagrad{.initial_accumulator = -1}, "adagrad: initial_accumulator = -1"},
      {kernels::Adam{.beta2 = 1}, "adam: beta2 = 1"},
      {kernels::Adam{.eps = -1e-8}, "adam: eps = -"},
      {Ftrl{.alpha = 0}, "ftrl: alpha = 0"},
      {Ftrl{.beta = 0}, "ftrl: beta or l2 must be above 0"},
  }};
  for (const auto& [rule, what] : wrong)
    expect_refused([&] { check(rule); }, Errc::kInvalidArgument, what);
}

TEST(RowRule, NamesAndStateBelongToTheRule) {
  EXPECT_EQ(rule_name(Add{}), "add");
  EXPECT_EQ(rule_name(Ftrl{}), "ftrl");
  EXPECT_EQ(state_arrays(Add{}), 0);
  EXPECT_EQ(state_arrays(kernels::Sgd{.momentum = 0.5}), 1);
  EXPECT_EQ(state_arrays(Adagrad{}), 1);
  EXPECT_EQ(state_arrays(kernels::Adam{.amsgrad = true}), 3);
  EXPECT_EQ(state_arrays(Ftrl{}), 2);
}

}  // namespace rule_test
}  // namespace weft::ps
