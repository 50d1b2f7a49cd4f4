#include "weft/observe/step_timer.h"

#include <gtest/gtest.h>

namespace weft::observe {
namespace {

using namespace std::chrono_literals;

TEST(StepTimer, AddsUpEachPhaseUntilReset) {
  StepTimer::Clock::time_point now{};
  StepTimer timer([&] { return now; });
  for (int i = 0; i < 2; ++i) {
    const auto scope = timer.time(Phase::kForward);
    now += 3ms;
  }
  timer.add(Phase::kCommunication, 1500us);
  EXPECT_DOUBLE_EQ(timer.ms(Phase::kForward), 6);
  EXPECT_DOUBLE_EQ(timer.ms(Phase::kCommunication), 1.5);
  EXPECT_DOUBLE_EQ(timer.ms(Phase::kData), 0);
  timer.reset();
  EXPECT_DOUBLE_EQ(timer.ms(Phase::kForward), 0);
}

TEST(StepTimer, CountsNestedTimeOnce) {
  StepTimer::Clock::time_point now{};
  StepTimer timer([&] { return now; });
  {
    const auto backward = timer.time(Phase::kBackward);
    now += 10ms;
    {
      const auto communication = timer.time(Phase::kCommunication);
      now += 4ms;
      const auto optimizer = timer.time(Phase::kOptimizer);
      now += 1ms;
    }
    now += 2ms;
  }
  EXPECT_DOUBLE_EQ(timer.ms(Phase::kBackward), 12);
  EXPECT_DOUBLE_EQ(timer.ms(Phase::kCommunication), 4);
  EXPECT_DOUBLE_EQ(timer.ms(Phase::kOptimizer), 1);
}

TEST(StepTimer, NamesItsPhases) {
  EXPECT_STREQ(to_string(Phase::kData), "data");
  EXPECT_STREQ(to_string(Phase::kOptimizer), "optimizer");
}

}  // namespace
}  // namespace weft::observe
