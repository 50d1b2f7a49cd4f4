#include "weft/parallel/compose/loss_scale.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft::parallel {
namespace loss_scale_test {

TEST(LossScale, FollowsTorchsGradScaler) {
  // torch.amp.GradScaler("cpu", init_scale=65536, growth_interval=3) of PyTorch 2.13: finite or
  // not, get_scale(), _get_growth_tracker().
  struct Step {
    bool finite;
    double scale;
    int good_steps;
  };
  LossScale scale({.interval = 3});
  for (const Step& step : {Step{true, 65536, 1},
                           {true, 65536, 2},
                           {true, 131072, 0},
                           {true, 131072, 1},
                           {false, 65536, 0},
                           {true, 65536, 1},
                           {true, 65536, 2},
                           {false, 32768, 0},
                           {false, 16384, 0},
                           {true, 16384, 1},
                           {true, 16384, 2},
                           {true, 32768, 0},
                           {true, 32768, 1},
                           {true, 32768, 2},
                           {true, 65536, 0},
                           {true, 65536, 1}}) {
    scale.update(step.finite);
    EXPECT_EQ(scale.scale(), step.scale);
    EXPECT_EQ(scale.good_steps(), step.good_steps);
  }
}

TEST(LossScale, HasTorchsDefaults) {
  LossScale scale;
  EXPECT_EQ(scale.scale(), 65536);
  for (int step = 0; step < 1999; ++step) scale.update(true);
  EXPECT_EQ(scale.scale(), 65536);
  scale.update(true);
  EXPECT_EQ(scale.scale(), 131072);
}

TEST(LossScale, StaysWithinFloat32AndRejectsInvalidScales) {
  LossScale scale({.initial = 0x1p127, .interval = 1});
  scale.update(true);
  EXPECT_EQ(scale.scale(), 0x1p127);
  EXPECT_THROW(LossScale({.initial = 0}), Error);
  EXPECT_THROW(LossScale({.growth = 1}), Error);
  EXPECT_THROW(LossScale({.backoff = 1}), Error);
  EXPECT_THROW(LossScale({.interval = 0}), Error);
  EXPECT_THROW(scale.set(-1, 0), Error);
}

}  // namespace loss_scale_test
}  // namespace weft::parallel
