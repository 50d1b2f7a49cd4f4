#include "weft/optim/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "weft/base/error.h"

namespace weft::optim {
namespace learning_rate_test {

using Shape = LearningRate::Shape;

struct Reference {
  const char* name;
  double time;
  double rate;
};
constexpr Reference kReferences[] = {
#include "weft/optim/learning_rate_reference.inc"
};

void expect_torch(const std::string& name, const LearningRate& rate) {
  int compared = 0;
  for (const auto& reference : kReferences) {
    if (reference.name != name) continue;
    ++compared;
    EXPECT_NEAR(rate.at(reference.time), reference.rate, 1e-12) << name << " at " << reference.time;
  }
  EXPECT_EQ(compared, 10) << name;
}

TEST(LearningRate, AgreesWithPyTorchsSchedulers) {
  expect_torch("step", {.base = 0.1, .shape = Shape::kStep, .period = 10, .gamma = 0.5});
  expect_torch("cosine", {.base = 0.1, .shape = Shape::kCosine, .period = 30, .minimum = 0.001});
  expect_torch("warmup", {.base = 0.1, .warmup = 5, .warmup_factor = 0.25});
  expect_torch("warmup step", {.base = 0.1,
                               .shape = Shape::kStep,
                               .period = 10,
                               .gamma = 0.5,
                               .warmup = 5,
                               .warmup_factor = 0.25});
}

TEST(LearningRate, TakesFractionsOfAnEpoch) {
  EXPECT_DOUBLE_EQ((LearningRate{.base = 1.0, .warmup = 2, .warmup_factor = 0.0}.at(0.5)), 0.25);
  EXPECT_DOUBLE_EQ(
      (LearningRate{.base = 1.0, .shape = Shape::kStep, .period = 3, .gamma = 0.1}.at(2.99)), 1.0);
}

// 0.1 k / 0.1 is a little below k for some k.
TEST(LearningRate, StepsAtMultiplesOfAFractionalPeriod) {
  const LearningRate rate{.base = 1, .shape = Shape::kStep, .period = 0.1, .gamma = 0.5};
  EXPECT_DOUBLE_EQ(rate.at(0.3), 0.125);
  for (int steps = 0; steps < 1000; ++steps) {
    EXPECT_DOUBLE_EQ(rate.at(0.1 * steps), std::pow(0.5, steps)) << steps;
    EXPECT_DOUBLE_EQ(rate.at(0.1 * steps + 0.0999), std::pow(0.5, steps)) << steps;
  }
}

TEST(LearningRate, StaysAtTheMinimumAfterTheCosine) {
  EXPECT_DOUBLE_EQ(
      (LearningRate{.base = 1.0, .shape = Shape::kCosine, .period = 3, .minimum = 0.25}.at(5)),
      0.25);
}

TEST(LearningRate, RefusesNegativeTimeAndEmptyPeriods) {
  EXPECT_THROW(LearningRate{}.at(-1), Error);
  EXPECT_THROW((LearningRate{.shape = Shape::kStep, .period = 0}.at(1)), Error);
}

TEST(LinearScaling, KeepsTheRateAtTheReferenceBatch) {
  EXPECT_DOUBLE_EQ(linear_scaling(0.1, 1, 256, 256), 0.1);
  EXPECT_DOUBLE_EQ(linear_scaling(0.1, 8, 256, 256), 0.8);  // Goyal et al.: 0.1 for 256 samples.
  EXPECT_THROW(linear_scaling(0.1, 0, 1, 1), Error);
}

}  // namespace learning_rate_test
}  // namespace weft::optim
