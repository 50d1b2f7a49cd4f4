// Momentum before the codec.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "weft/compress/testing/ranks.h"

namespace weft::compress {
namespace {

using internal::Floats, internal::gradients, internal::Ranks, internal::unit_of;

// Velocities as torch::optim::SGD computes them, in double: u = m u + g.
class Velocities {
 public:
  Velocities(int world, std::size_t count)
      : u_(static_cast<std::size_t>(world), std::vector<double>(count, 0)) {}
  // Sum over ranks of the steps of SGD.
  std::vector<double> step(const std::vector<Floats>& gradients, const Momentum& momentum) {
    std::vector<double> sum(u_[0].size(), 0);
    for (std::size_t rank = 0; rank < u_.size(); ++rank) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const auto g = static_cast<double>(gradients[rank][i]);
        double& u = u_[rank][i];
        u = momentum.factor * u + g;
        sum[i] += momentum.nesterov ? g + momentum.factor * u : u;
      }
    }
    return sum;
  }

 private:
  std::vector<std::vector<double>> u_;  // by rank
};

TEST(Momentum, EqualsSgdOnTheSumDuringWarmUp) {
  for (const bool nesterov : {false, true}) {
    for (const char* codec : {"sign:64", "randomk:0.1,momentum=before", "topk:0.5,momentum=before",
                              "powersgd:2,momentum=before"}) {
      Unit unit = unit_of(3000);
      unit.momentum = {0.9, nesterov};
      Ranks ranks(std::string(codec) + ",warmup=5", unit, 3);
      Velocities sgd(3, 3000);
      for (std::uint64_t step = 0; step < 5; ++step) {
        auto values = gradients(3, 3000, step);
        const auto want = sgd.step(values, unit.momentum);
        ranks.step(values);
        for (std::size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(values[0][i], want[i], 2e-6) << codec << " step " << step;
      }
    }
  }
}

// As FeedbackMakesTheSumsTelescope, for velocities.
TEST(Momentum, LosesNothingWithADenseCodec) {
  for (const char* codec : {"sign:64", "int4:64,momentum=before"}) {
    Unit unit = unit_of(3000);
    unit.momentum = {0.9, false};
    Ranks ranks(codec, unit, 2);
    Velocities sgd(2, 3000);
    std::vector<double> in(3000, 0), out(3000, 0);
    for (std::uint64_t step = 0; step < 12; ++step) {
      auto values = gradients(2, 3000, step);
      const auto sum = sgd.step(values, unit.momentum);
      ranks.step(values);
      for (std::size_t i = 0; i < in.size(); ++i)
        in[i] += sum[i], out[i] += static_cast<double>(values[0][i]);
    }
    for (int rank = 0; rank < 2; ++rank) {
      const auto unsent = ranks[rank].state()[0];
      for (std::size_t i = 0; i < in.size(); ++i) out[i] += static_cast<double>(unsent[i]);
    }
    for (std::size_t i = 0; i < in.size(); ++i)
      ASSERT_NEAR(out[i], in[i], 1e-4) << codec << " number " << i;
  }
}

// Lin et al. 2018, section 3.2, "momentum factor masking".
TEST(Momentum, EndsForNumbersThatWereSent) {
  for (const char* codec : {"topk:0.1,momentum=before"}) {
    for (const int world : {2, 4}) {
      Unit unit = unit_of(5000);
      unit.momentum = {0.9, false};
      Ranks ranks(codec, unit, world);
      for (std::uint64_t step = 0; step < 3; ++step) {
        auto values = gradients(world, 5000, step);
        ranks.step(values);
      }
      int ended = 0;
      const auto state = ranks[0].state();
      const auto unsent = state.front(), velocity = state.back();
      for (std::size_t i = 0; i < 5000; ++i) {
        ASSERT_EQ(velocity[i] == 0, unsent[i] == 0)
            << codec << ", world " << world << ", number " << i;
        ended += velocity[i] == 0 ? 1 : 0;
      }
      EXPECT_NEAR(ended, 500, 8) << codec << ", world " << world;
    }
  }
}

// In the end, every gradient has weight 1 / (1 - m): the sum of the output, the unsent values and
// the remaining effect of the velocities.
TEST(Momentum, LosesNoWeightWithRandomK) {
  for (const char* codec : {"randomk:0.1", "randomk:0.5", "randomk:0.1,warmup=4"}) {
    for (const bool nesterov : {false, true}) {
      Unit unit = unit_of(5000);
      unit.momentum = {0.9, nesterov};
      Ranks ranks(codec, unit, 2);
      std::vector<double> in(5000, 0), out(5000, 0);
      for (std::uint64_t step = 0; step < 12; ++step) {
        auto values = gradients(2, 5000, step);
        const auto sum = internal::sum_of(values);
        ranks.step(values);
        for (std::size_t i = 0; i < in.size(); ++i)
          in[i] += sum[i] / (1 - 0.9), out[i] += static_cast<double>(values[0][i]);
      }
      const double owed = (nesterov ? 0.81 : 0.9) / (1 - 0.9);
      for (int rank = 0; rank < 2; ++rank) {
        const auto state = ranks[rank].state();
        const auto unsent = state.front(), velocity = state.back();
        for (std::size_t i = 0; i < in.size(); ++i)
          out[i] += static_cast<double>(unsent[i]) + owed * static_cast<double>(velocity[i]);
      }
      for (std::size_t i = 0; i < in.size(); ++i)
        ASSERT_NEAR(out[i], in[i], 2e-4) << codec << " number " << i;
    }
  }
}

// Checked with a number that is sent in every step: it has no velocity.
TEST(Momentum, CountsAtOnceWithRandomK) {
  Unit unit{.count = 10100, .matrices = {{0, 100, 1}, {100, 100, 100}}};
  unit.momentum = {0.75, false};
  Ranks ranks("randomk:0.1", unit, 2);
  for (std::uint64_t step = 0; step < 3; ++step) {
    auto values = gradients(2, 10100, step);
    const auto sum = internal::sum_of(values);
    ranks.step(values);
    for (std::size_t i = 0; i < 100; ++i) ASSERT_NEAR(values[0][i], sum[i] / (1 - 0.75), 1e-5) << i;
    const auto state = ranks[1].state();
    for (float velocity : state.back()) ASSERT_EQ(velocity, 0.0f);
  }
}

TEST(Momentum, ShowsNanWithoutKeepingIt) {
  for (const char* codec : {"sign:64", "randomk:0.1,momentum=before", "sign:64,warmup=9"}) {
    Unit unit = unit_of(3000);
    unit.momentum = {0.9, false};
    Ranks ranks(codec, unit, 2);
    auto broken = gradients(2, 3000, 1);
    broken[1][500] = std::numeric_limits<float>::quiet_NaN();
    ranks.step(broken);
    EXPECT_EQ(ranks[1].state().back()[500], 0.0f) << codec;
    for (std::uint64_t step = 2; step < 30; ++step) {
      auto values = gradients(2, 3000, step);
      ranks.step(values);
      ASSERT_TRUE(step < 20 || std::isfinite(values[0][500])) << codec;
    }
  }
}

TEST(Momentum, IsLeftToTheOptimizerByOtherCodecs) {
  for (const char* codec : {"int8", "topk:0.1", "sign,momentum=after", "sign,ef=off", "none"}) {
    Unit unit = unit_of(3000);
    Ranks plain(codec, unit, 2);
    unit.momentum = {0.9, false};
    Ranks given(codec, unit, 2);
    for (std::uint64_t step = 0; step < 3; ++step) {
      auto a = gradients(2, 3000, step), b = a;
      plain.step(a);
      given.step(b);
      EXPECT_EQ(a, b) << codec;
    }
  }
}

}  // namespace
}  // namespace weft::compress
