#include "weft/kernels/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/kernels/internal/level.h"

namespace weft::kernels {
namespace update_test {

struct Reference {
  const char* name;
  int step;
  double weights[8];
};
constexpr Reference kReferences[] = {
#include "weft/kernels/update_reference.inc"
};

// Initial weights and gradients are those of update_reference.py.
float initial_weight(std::int64_t i) {
  return (0.5f + 0.25f * static_cast<float>(i)) * (i % 2 ? -1.0f : 1.0f);
}
float gradient_at(std::int64_t i, std::int64_t step) {
  return static_cast<float>((i * 7 + step * 5) % 11 - 5) / 8.0f;
}

// Weights and up to three state arrays, each `shift` floats past the start of its memory.
struct Model {
  Model(std::int64_t number, std::int64_t shift, float initial_state)
      : count(number), offset(shift) {
    for (auto* array : {&weights, &gradients})
      array->resize(static_cast<std::size_t>(count + shift));
    for (auto& one : states) one.assign(static_cast<std::size_t>(count + shift), initial_state);
    for (std::int64_t i = 0; i < count; ++i) weight()[i] = initial_weight(i % 97);
  }
  float* weight() { return weights.data() + offset; }
  float* gradient() { return gradients.data() + offset; }
  float* state(int i) { return states[i].data() + offset; }
  void set_gradient(std::int64_t step) {
    for (std::int64_t i = 0; i < count; ++i) gradient()[i] = gradient_at(i, step);
  }
  std::int64_t count;
  std::int64_t offset;
  std::vector<float> weights;
  std::vector<float> gradients;
  std::vector<float> states[3];
};

using Step = std::function<void(Model&, std::int64_t)>;

// Expects PyTorch's weights after 5 and after 100 steps, within a relative error of 1e-6.
void expect_torch(const std::string& name, const Step& step, float initial_state = 0.0f) {
  Model model(8, 0, initial_state);
  int compared = 0;
  for (std::int64_t t = 1; t <= 100; ++t) {
    model.set_gradient(t);
    step(model, t);
    for (const auto& reference : kReferences) {
      if (reference.name != name || reference.step != t) continue;
      ++compared;
      for (int i = 0; i < 8; ++i) {
        EXPECT_NEAR(static_cast<double>(model.weight()[i]), reference.weights[i],
                    1e-6 * std::fabs(reference.weights[i]))
            << name << ", step " << t << ", weight " << i;
      }
    }
  }
  EXPECT_EQ(compared, 2) << "no reference values for " << name;
}

Step sgd_step(const Sgd& options) {
  return [options](Model& m, std::int64_t t) {
    sgd(m.weight(), m.gradient(), options.momentum > 0 ? m.state(0) : nullptr, m.count, t, options);
  };
}
Step rmsprop_step(const RmsProp& options) {
  return [options](Model& m, std::int64_t) {
    rmsprop(m.weight(), m.gradient(), m.state(0), options.momentum > 0 ? m.state(1) : nullptr,
            options.centered ? m.state(2) : nullptr, m.count, options);
  };
}
Step adagrad_step(const Adagrad& options) {
  return [options](Model& m, std::int64_t t) {
    adagrad(m.weight(), m.gradient(), m.state(0), m.count, t, options);
  };
}
Step adam_step(const Adam& options) {
  return [options](Model& m, std::int64_t t) {
    adam(m.weight(), m.gradient(), m.state(0), m.state(1), options.amsgrad ? m.state(2) : nullptr,
         m.count, t, options);
  };
}

TEST(SgdUpdate, AgreesWithPyTorchOverAHundredSteps) {
  expect_torch("sgd", sgd_step({.lr = 0.01}));
  expect_torch("sgd momentum", sgd_step({.lr = 0.01, .momentum = 0.9}));
  expect_torch("sgd dampening", sgd_step({.lr = 0.01, .momentum = 0.9, .dampening = 0.5}));
  expect_torch(
      "sgd nesterov decay",
      sgd_step({.lr = 0.01, .momentum = 0.9, .nesterov = true, .regularizer = {.l2 = 0.01}}));
  expect_torch("sgd l1 l2", sgd_step({.lr = 0.01, .regularizer = {.l1 = 0.02, .l2 = 0.01}}));
}

TEST(SgdUpdate, InitializesTheMomentumAtTheFirstStepWithoutReadingIt) {
  Model model(33, 0, std::nanf(""));
  model.set_gradient(1);
  sgd(model.weight(), model.gradient(), model.state(0), 33, 1, {.momentum = 0.9, .dampening = 0.5});
  for (int i = 0; i < 33; ++i) EXPECT_EQ(model.state(0)[i], gradient_at(i, 1));
}

TEST(RmsPropUpdate, AgreesWithPyTorchOverAHundredSteps) {
  expect_torch("rmsprop", rmsprop_step({.lr = 0.001}));
  expect_torch("rmsprop momentum",
               rmsprop_step({.lr = 0.001, .alpha = 0.95, .eps = 1e-6, .momentum = 0.5}));
  expect_torch("rmsprop centered decay",
               rmsprop_step({.lr = 0.001, .centered = true, .regularizer = {.l2 = 0.01}}));
  expect_torch("rmsprop centered momentum",
               rmsprop_step({.lr = 0.001, .momentum = 0.5, .centered = true}));
}

TEST(AdagradUpdate, AgreesWithPyTorchOverAHundredSteps) {
  expect_torch("adagrad", adagrad_step({.lr = 0.01}));
  expect_torch("adagrad lr_decay decay",
               adagrad_step({.lr = 0.01, .lr_decay = 0.01, .regularizer = {.l2 = 0.01}}), 0.1f);
}

TEST(AdamUpdate, AgreesWithPyTorchOverAHundredSteps) {
  expect_torch("adam", adam_step({.lr = 0.001}));
  expect_torch("adam decay amsgrad", adam_step({.lr = 0.002,
                                                .beta1 = 0.8,
                                                .beta2 = 0.99,
                                                .eps = 1e-6,
                                                .amsgrad = true,
                                                .regularizer = {.l2 = 0.01}}));
  expect_torch("adamw", adam_step({.lr = 0.001, .decoupled_decay = 0.1}));
  expect_torch(
      "adamw amsgrad l1",
      adam_step(
          {.lr = 0.001, .decoupled_decay = 0.05, .amsgrad = true, .regularizer = {.l1 = 0.02}}));
}

TEST(LionUpdate, AgreesWithPytorchOptimizerOverAHundredSteps) {
  const auto lion_step = [](const Lion& options) -> Step {
    return [options](Model& m, std::int64_t) {
      lion(m.weight(), m.gradient(), m.state(0), m.count, options);
    };
  };
  expect_torch("lion", lion_step({.lr = 0.001}));
  expect_torch("lion decay",
               lion_step({.lr = 0.002, .beta1 = 0.95, .beta2 = 0.98, .decoupled_decay = 0.1}));
}

using LevelStep = std::function<void(const internal::Level&, Model&, std::int64_t)>;

// Expects the bits of the generic level at every level, count and misalignment.
void expect_same_bits(const LevelStep& step) {
  for (const std::int64_t count : {0, 1, 7, 15, 16, 17, 33, 1000}) {
    Model first(count, 0, 0.0f);
    for (std::int64_t t = 1; t <= 3; ++t) {
      first.set_gradient(t);
      step(internal::kGeneric, first, t);
    }
    for (const char* limit : {"generic", "avx2", ""}) {
      const auto& level = internal::choose_level(limit);
      Model model(count, 1, 0.0f);
      for (std::int64_t t = 1; t <= 3; ++t) {
        model.set_gradient(t);
        step(level, model, t);
      }
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(model.weight()[i], first.weight()[i])
            << level.name << ", " << i << " of " << count;
        for (int s = 0; s < 3; ++s)
          ASSERT_EQ(model.state(s)[i], first.state(s)[i]) << level.name << ", state " << s;
      }
      EXPECT_EQ(model.weights[0], 0.0f) << "wrote before the array";
    }
  }
}

TEST(Update, GivesTheSameBitsAtEveryLevelCountAndAlignment) {
  for (const Regularizer& regularizer : {Regularizer{}, Regularizer{.l1 = 0.02, .l2 = 0.01}}) {
    for (const bool flag : {false, true}) {
      expect_same_bits([&](const auto& level, Model& m, std::int64_t t) {
        level.sgd(m.weight(), m.gradient(), m.state(0), m.count, t,
                  {.momentum = 0.9, .nesterov = flag, .regularizer = regularizer});
      });
      expect_same_bits([&](const auto& level, Model& m, std::int64_t) {
        level.rmsprop(m.weight(), m.gradient(), {m.state(0), m.state(1), m.state(2)}, m.count,
                      {.momentum = flag ? 0.5 : 0.0, .centered = flag, .regularizer = regularizer});
      });
      expect_same_bits([&](const auto& level, Model& m, std::int64_t t) {
        level.adagrad(m.weight(), m.gradient(), m.state(0), m.count, t,
                      {.lr_decay = flag ? 0.1 : 0.0, .regularizer = regularizer});
      });
      expect_same_bits([&](const auto& level, Model& m, std::int64_t t) {
        level.adam(
            m.weight(), m.gradient(), {m.state(0), m.state(1), m.state(2)}, m.count, t,
            {.decoupled_decay = flag ? 0.1 : 0.0, .amsgrad = flag, .regularizer = regularizer});
      });
      expect_same_bits([&](const auto& level, Model& m, std::int64_t) {
        level.lion(m.weight(), m.gradient(), m.state(0), m.count,
                   {.decoupled_decay = flag ? 0.1 : 0.0, .regularizer = regularizer});
      });
    }
  }
}

TEST(Update, RefusesAStepBeforeTheFirstAndNesterovWithoutMomentum) {
  float value[4] = {};
  EXPECT_THROW(adam(value, value + 1, value + 2, value + 3, nullptr, 1, 0, {}), Error);
  EXPECT_THROW(sgd(value, value + 1, nullptr, 1, 1, {.nesterov = true}), Error);
}

}  // namespace update_test
}  // namespace weft::kernels
