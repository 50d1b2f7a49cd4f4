#include "weft/train/internal/run_limits.h"

#include <gtest/gtest.h>

namespace weft::train::internal {
namespace run_limits_test {

constexpr std::int64_t kPerEpoch = 100;

struct LimitedRun {
  Options options{.epochs = 3};
  RunCount at{.epoch_steps = kPerEpoch};
  RunLimits limits{options, at};
};

TEST(RunLimits, CountTheBatchesOfAllEpochs) {
  LimitedRun run;
  EXPECT_EQ(run.limits.batches_left(kPerEpoch), 300);
  run.at = {.step = 140, .epoch = 1, .in_epoch = 40, .epoch_steps = kPerEpoch};
  EXPECT_EQ(run.limits.batches_left(kPerEpoch), 160);
  EXPECT_EQ(run.limits.batches(kPerEpoch), 300);
  run.at = {.step = 300, .epoch = 3, .epoch_steps = kPerEpoch};
  EXPECT_EQ(run.limits.batches_left(kPerEpoch), 0);
  EXPECT_EQ(run.limits.batches(kPerEpoch), 300);
}

TEST(RunLimits, CountTheBatchesUntilTheLastStepByThoseOfAStepNow) {
  LimitedRun run;
  run.options.max_steps = 30;
  run.at = {.step = 10, .in_epoch = 40, .epoch_steps = kPerEpoch, .passes = 4};
  EXPECT_EQ(run.limits.batches_left(kPerEpoch), 80);
  EXPECT_EQ(run.limits.steps_left(kPerEpoch), 20);
  EXPECT_EQ(run.limits.batches(kPerEpoch), 120);
  run.options.max_steps = 1000;
  EXPECT_EQ(run.limits.batches(kPerEpoch), 300);
  EXPECT_EQ(run.limits.steps_left(kPerEpoch), 65);
  run.at.step = run.options.max_steps;
  EXPECT_EQ(run.limits.batches_left(kPerEpoch), 0);
}

// The epoch has begun with smaller batches, of which it had 80 by now.
TEST(RunLimits, CountTheRestOfAnEpochThatHasBegunWithOtherBatches) {
  LimitedRun run;
  run.at = {.step = 80, .in_epoch = 40, .epoch_steps = 99};
  EXPECT_EQ(run.limits.batches_left(kPerEpoch), 259);
  EXPECT_EQ(run.at.batches(kPerEpoch), 41);
  EXPECT_EQ(run.limits.batches(kPerEpoch), 300);
}

}  // namespace run_limits_test
}  // namespace weft::train::internal
