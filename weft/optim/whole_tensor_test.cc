// Rules that need whole tensors, on one tensor after the other. The engine's tests have them over
// ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/optim/adafactor.h"
#include "weft/optim/layerwise.h"
#include "weft/optim/noise_scale.h"
#include "weft/optim/tensor_sums.h"
#include "weft/optim/update_rule.h"

namespace weft::optim {
namespace whole_tensor_test {

struct Reference {
  const char* name;
  int step;
  double weights[17];
};
constexpr Reference kReferences[] = {
#include "weft/optim/whole_tensor_reference.inc"
};

// A matrix [3, 4] and a vector [5]. Weights and gradients are those of whole_tensor_reference.py.
struct Tensor {
  std::vector<std::int64_t> sizes;
  std::int64_t first, count;
};
const std::vector<Tensor> kTensors = {{{3, 4}, 0, 12}, {{5}, 12, 5}};
constexpr std::size_t kAll = 17;

template <class Number>
struct Model {
  Model() : weights(kAll), gradients(kAll), states(2, std::vector<Number>(kAll)), moments(2) {
    for (std::size_t i = 0; i < kAll; ++i)
      weights[i] = static_cast<Number>((0.5 + 0.25 * static_cast<double>(i)) * (i % 2 ? -1 : 1));
  }
  void set_gradients(std::int64_t step) {
    for (std::int64_t i = 0; i < 17; ++i)
      gradients[static_cast<std::size_t>(i)] =
          static_cast<Number>((static_cast<double>((i * 7 + step * 5) % 11) - 4.5) / 8);
  }
  // Elements [begin, end) of a tensor.
  FlatStep<Number> part(const Tensor& tensor, std::int64_t step, std::int64_t begin,
                        std::int64_t end, std::size_t arrays) {
    const auto at = static_cast<std::size_t>(tensor.first + begin);
    FlatStep<Number> flat{
        .weight = &weights[at], .gradient = &gradients[at], .count = end - begin, .step = step};
    for (std::size_t i = 0; i < arrays; ++i) flat.state[i] = &states[i][at];
    return flat;
  }
  std::vector<Number> weights, gradients;
  std::vector<std::vector<Number>> states;
  std::vector<std::vector<Number>> moments;  // of Adafactor, by tensor
};

// Cuts of a tensor, as ranks have.
using Cuts = std::vector<std::pair<std::int64_t, std::int64_t>>;
Cuts cuts_of(const Tensor& tensor, std::int64_t parts) {
  Cuts cuts;
  for (std::int64_t i = 0; i < parts; ++i)
    cuts.emplace_back(tensor.count * i / parts, tensor.count * (i + 1) / parts);
  return cuts;
}

template <class Number, class Rule>
void step_layerwise(Model<Number>& model, const Rule& rule, std::int64_t step, std::int64_t parts,
                    bool exact) {
  const std::size_t arrays = state_names(UpdateRule(rule)).size();
  for (const Tensor& tensor : kTensors) {
    TensorSums sums(2, exact);
    for (const auto& [begin, end] : cuts_of(tensor, parts))
      begin_step(rule, model.part(tensor, step, begin, end, arrays), sums, 0);
    for (const auto& [begin, end] : cuts_of(tensor, parts)) {
      end_step(rule, model.part(tensor, step, begin, end, arrays),
               TensorNorms{.weight = std::sqrt(sums.value(0)),
                           .update = std::sqrt(sums.value(1)),
                           .is_vector = tensor.sizes.size() <= 1});
    }
  }
}

template <class Number>
void step_adafactor(Model<Number>& model, const Adafactor& rule, std::int64_t step,
                    std::int64_t parts, bool exact) {
  const std::size_t arrays = state_names(UpdateRule(rule)).size();
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    const Tensor& tensor = kTensors[i];
    const FactoredShape shape = factored_shape(tensor.sizes);
    auto& moments = model.moments[i];
    moments.resize(shape.sums());
    TensorSums sums(shape.sums(), exact), means(2, exact);
    const Cuts cuts = cuts_of(tensor, parts);
    for (const auto& [begin, end] : cuts)
      add_gradient(model.part(tensor, step, begin, end, arrays), begin, shape, sums, 0);
    const auto factors = update_moments(rule, step, shape, sums, 0, moments.data());
    for (const auto& [begin, end] : cuts)
      add_update(model.part(tensor, step, begin, end, arrays), begin, shape, factors, means, 0);
    const auto mean = [&](std::size_t sum) {
      return std::sqrt(means.value(sum) / static_cast<double>(tensor.count));
    };
    for (const auto& [begin, end] : cuts)
      end_step(rule, model.part(tensor, step, begin, end, arrays), begin, shape, factors,
               RootMeans{.weight = mean(0), .update = mean(1)});
  }
}

using Step = std::function<void(Model<float>&, std::int64_t step)>;

// Expects the package's weights after 5 and after 20 steps, within a relative error of 1e-6.
void expect_reference(const std::string& name, const Step& step) {
  Model<float> model;
  int compared = 0;
  for (std::int64_t t = 1; t <= 20; ++t) {
    model.set_gradients(t);
    step(model, t);
    for (const Reference& reference : kReferences) {
      if (reference.name != name || reference.step != t) continue;
      ++compared;
      for (std::size_t i = 0; i < kAll; ++i) {
        EXPECT_NEAR(static_cast<double>(model.weights[i]), reference.weights[i],
                    1e-6 * std::fabs(reference.weights[i]))
            << name << ", step " << t << ", weight " << i;
      }
    }
  }
  EXPECT_EQ(compared, 2) << "no reference values for " << name;
}

template <class Rule>
Step layerwise(const Rule& rule) {
  return [rule](Model<float>& model, std::int64_t t) { step_layerwise(model, rule, t, 2, false); };
}

TEST(Lars, AgreesWithPytorchOptimizer) {
  expect_reference("lars", layerwise(Lars{.lr = 0.02, .trust = 0.05}));
  expect_reference(
      "lars decay",
      layerwise(Lars{.lr = 0.02, .momentum = 0.8, .trust = 0.05, .weight_decay = 0.1}));
  expect_reference("lars nesterov", layerwise(Lars{.lr = 0.02, .trust = 0.05, .nesterov = true}));
}

TEST(AdafactorRule, AgreesWithPytorchOptimizer) {
  const auto adafactor = [](const Adafactor& rule) -> Step {
    return
        [rule](Model<float>& model, std::int64_t t) { step_adafactor(model, rule, t, 2, false); };
  };
  expect_reference("adafactor", adafactor({.lr = 0.01}));
  expect_reference("adafactor momentum decay",
                   adafactor({.lr = 0.01, .beta1 = 0.9, .weight_decay = 0.1}));
}

// The equations of the paper's algorithm 2, tensor by tensor, in float64.
std::vector<double> lamb_by_equations(const Lamb& rule, int steps) {
  Model<double> model;
  std::vector<double> m(kAll), v(kAll);
  for (int t = 1; t <= steps; ++t) {
    model.set_gradients(t);
    for (const Tensor& tensor : kTensors) {
      double weights = 0, updates = 0;
      std::vector<double> update;
      for (std::int64_t k = 0; k < tensor.count; ++k) {
        const auto i = static_cast<std::size_t>(tensor.first + k);
        const double g = model.gradients[i];
        m[i] = rule.beta1 * m[i] + (1 - rule.beta1) * g;
        v[i] = rule.beta2 * v[i] + (1 - rule.beta2) * g * g;
        const double mean = m[i] / (1 - std::pow(rule.beta1, t)),
                     square = v[i] / (1 - std::pow(rule.beta2, t));
        update.push_back(mean / (std::sqrt(square) + rule.eps) +
                         rule.weight_decay * model.weights[i]);
        weights += model.weights[i] * model.weights[i];
        updates += update.back() * update.back();
      }
      for (std::int64_t k = 0; k < tensor.count; ++k)
        model.weights[static_cast<std::size_t>(tensor.first + k)] -=
            rule.lr * std::sqrt(weights / updates) * update[static_cast<std::size_t>(k)];
    }
  }
  return model.weights;
}

TEST(LambRule, FollowsTheEquationsOfItsPaper) {
  const Lamb rule{.lr = 0.01, .weight_decay = 0.1};
  const auto expected = lamb_by_equations(rule, 20);
  Model<float> single;
  Model<double> twice;
  for (std::int64_t t = 1; t <= 20; ++t) {
    single.set_gradients(t);
    twice.set_gradients(t);
    step_layerwise(single, rule, t, 2, false);
    step_layerwise(twice, rule, t, 2, false);
  }
  for (std::size_t i = 0; i < kAll; ++i) {
    EXPECT_NEAR(twice.weights[i], expected[i], 1e-12) << i;
    EXPECT_NEAR(static_cast<double>(single.weights[i]), expected[i], 1e-6 * std::fabs(expected[i]))
        << i;
  }
}

TEST(WholeTensorRules, GiveTheSameBitsForAnyDivisionIfSumsAreExact) {
  const auto run = [](const auto& step, std::int64_t parts) {
    Model<float> model;
    for (std::int64_t t = 1; t <= 5; ++t) {
      model.set_gradients(t);
      step(model, t, parts);
    }
    return model.weights;
  };
  const auto lars = [](auto& model, std::int64_t t, std::int64_t parts) {
    step_layerwise(model, Lars{.weight_decay = 0.1}, t, parts, true);
  };
  const auto lamb = [](auto& model, std::int64_t t, std::int64_t parts) {
    step_layerwise(model, Lamb{.weight_decay = 0.1}, t, parts, true);
  };
  const auto adafactor = [](auto& model, std::int64_t t, std::int64_t parts) {
    step_adafactor(model, Adafactor{.beta1 = 0.9}, t, parts, true);
  };
  for (const std::int64_t parts : {2, 3, 5, 7}) {
    EXPECT_EQ(run(lars, parts), run(lars, 1)) << "lars, " << parts;
    EXPECT_EQ(run(lamb, parts), run(lamb, 1)) << "lamb, " << parts;
    EXPECT_EQ(run(adafactor, parts), run(adafactor, 1)) << "adafactor, " << parts;
  }
}

TEST(LarsAndLamb, StepWithoutScalingWhereANormIsZero) {
  float weight[2] = {0, 0}, gradient[2] = {0.5f, -0.5f}, mean[2] = {}, square[2] = {};
  const FlatStep<float> at{.weight = weight, .gradient = gradient, .count = 2};
  end_step(Lars{.lr = 1, .momentum = 0}, at, TensorNorms{.weight = 0, .update = 1});
  EXPECT_EQ(weight[0], -0.5f);
  weight[0] = weight[1] = 1;
  gradient[0] = gradient[1] = 0;
  end_step(Lars{.lr = 1, .momentum = 0, .weight_decay = 0.5}, at,
           TensorNorms{.weight = 1, .update = 0});
  EXPECT_EQ(weight[0], 0.5f);
  gradient[0] = 0.5f;
  FlatStep<float> lamb = at;
  lamb.state = {mean, square};
  weight[0] = weight[1] = 0;
  TensorSums sums(2, false);
  begin_step(Lamb{.lr = 1}, lamb, sums, 0);
  EXPECT_EQ(sums.value(0), 0);
  end_step(Lamb{.lr = 1}, lamb, TensorNorms{.weight = 0, .update = std::sqrt(sums.value(1))});
  EXPECT_NEAR(static_cast<double>(weight[0]), -1, 1e-5);
}

TEST(TensorSums, AreExactInAnyOrder) {
  std::vector<double> values;
  for (int i = 0; i < 3000; ++i) values.push_back(std::ldexp(1 + i % 7 / 8.0, i % 300 - 150));
  TensorSums forward(1, true), backward(1, true), halves(2, true);
  for (const double x : values) forward.add(0, x);
  for (auto x = values.rbegin(); x != values.rend(); ++x) backward.add(0, *x);
  for (std::size_t i = 0; i < values.size(); ++i) halves.add(i % 2, values[i]);
  for (std::size_t i = 0; i < halves.width(); ++i) halves.integers(0)[i] += halves.integers(1)[i];
  EXPECT_EQ(forward.value(0), backward.value(0));
  EXPECT_EQ(forward.value(0), halves.value(0));
  TensorSums small(1, true);
  for (int i = 0; i < 1000; ++i) small.add(0, 0x1p-60);
  small.add(0, 1);
  EXPECT_EQ(small.value(0), 1 + 1000 * 0x1p-60) << "plain float64 would give 1";
  const float numbers[] = {3, 4};
  TensorSums squares(2, true), plain(2, false);
  for (TensorSums* sums : {&squares, &plain}) {
    sums->add_squares(0, numbers, 2);
    sums->add_each_square(0, numbers, 2);
    EXPECT_EQ(sums->value(0), 34);
    EXPECT_EQ(sums->value(1), 16);
  }
}

TEST(TensorSums, AreNotANumberIfAnOperandIsNotFiniteOrTooLarge) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(), 0x1p352}) {
    TensorSums sums(1, true);
    sums.add(0, 1);
    sums.add(0, bad);
    EXPECT_TRUE(std::isnan(sums.value(0))) << bad;
  }
}

TEST(WholeTensorRules, AreRefusedByUpdateFlat) {
  float value[4] = {};
  const FlatStep<float> at{.weight = value, .gradient = value + 1, .count = 1};
  for (const UpdateRule& rule : {UpdateRule(Lars{}), UpdateRule(Muon{})})
    EXPECT_THROW(update_flat(rule, at), Error);
}

TEST(AdafactorRule, IsRefusedWithADecayAboveZeroOrAClipThatIsNotAboveZero) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const double decay_power : {0.8, nan, -infinity})
    EXPECT_THROW(check_rule(Adafactor{.decay_power = decay_power}), Error) << decay_power;
  for (const double clip : {0.0, -1.0, nan})
    EXPECT_THROW(check_rule(Adafactor{.clip = clip}), Error) << clip;
  check_rule(Adafactor{.decay_power = 0, .clip = infinity});
  check_rule(Adafactor{});
}

TEST(TensorStates, AreRowsAndColumnsOfTheLastTwoDimensions) {
  const auto states = tensor_states(Adafactor{}, {2, 3, 4});
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].sizes, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(states[1].sizes, (std::vector<std::int64_t>{2, 4}));
  EXPECT_EQ(tensor_states(Adafactor{}, {7})[0].name, "exp_avg_sq");
  EXPECT_TRUE(tensor_states(Lamb{}, {2, 3}).empty());
}

// A gradient with mean square norm |G|^2 and covariance trace S has an expected square norm of
// |G|^2 + S / b over b samples (equation A.1 of the paper).
TEST(NoiseScale, IsTheRatioThatMadeTheNorms) {
  NoiseScale scale;
  EXPECT_FALSE(scale.value().has_value());
  scale.add(
      {.small_squares = std::nan(""), .large_squares = 1, .small_batch = 1, .large_batch = 2});
  scale.add({.small_squares = 2, .large_squares = 1, .small_batch = 2, .large_batch = 2});
  EXPECT_FALSE(scale.value().has_value()) << "no number, or one batch";
  const double signal = 0.25, noise = 50;
  for (const double batch : {8.0, 16.0})
    scale.add({.small_squares = signal + noise / batch,
               .large_squares = signal + noise / (4 * batch),
               .small_batch = batch,
               .large_batch = 4 * batch});
  EXPECT_NEAR(scale.value().value(), 200, 1e-9);
  NoiseScale other;
  other.restore(scale.state());
  EXPECT_EQ(other.value(), scale.value());
}

}  // namespace whole_tensor_test
}  // namespace weft::optim
