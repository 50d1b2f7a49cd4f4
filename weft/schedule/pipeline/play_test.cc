// Known answers: the formulas of the papers, and PyTorch's action lists.
#include "weft/schedule/pipeline/play.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "weft/base/error.h"
#include "weft/schedule/pipeline/proof.h"

namespace weft::schedule::pipeline {
namespace {

using ::testing::DoubleNear;

constexpr double kTiny = 1e-9;

Timing played(const Request& q, const Costs& costs = {}) { return play(make(q), costs); }

const std::vector<Costs> kUneven = {{1, 1, 1}, {1, 2, 0.5}, {0.7, 0.4, 1.3}, {2, 1, 1}};

// Huang and others 2019, section 2.3; Narayanan and others 2021, section 2.2.1: (p-1)/(m+p-1) of
// the time.
TEST(Play, LeavesGPipeAnd1F1BIdleForTheirShare) {
  for (const Algorithm algorithm :
       {Algorithm::kGPipe, Algorithm::kOneForwardOneBackward, Algorithm::kForwardOnly}) {
    for (const Costs& costs : kUneven) {
      for (const auto& [p, m] :
           {std::pair(1, 3), {2, 1}, {4, 2}, {4, 8}, {5, 13}, {8, 8}, {16, 32}}) {
        const Timing timing = played({algorithm, p, m}, costs);
        EXPECT_NEAR(timing.idle_share, (p - 1.0) / (m + p - 1.0), kTiny)
            << to_string(algorithm) << " " << p << " " << m;
        for (const double idle : timing.idle)
          EXPECT_NEAR(idle, timing.idle_share, kTiny) << "ranks are alike";
      }
    }
  }
}

// Narayanan and others 2021 (Megatron-LM), section 2.2.2, and Lamy-Poirier 2023: the bubble is 1/v
// as long, even if p does not divide m.
TEST(Play, LeavesInterleavedAndBreadthFirstIdleForAVthOfThatShare) {
  for (const Algorithm algorithm : {Algorithm::kInterleaved, Algorithm::kGPipe}) {
    for (const Costs& costs : kUneven) {
      for (const auto& [p, m] :
           {std::pair(2, 2), {2, 7}, {4, 4}, {4, 6}, {4, 8}, {4, 11}, {8, 32}, {8, 29}}) {
        for (const int v : {2, 3, 4}) {
          const Timing timing = played({algorithm, p, m, v}, costs);
          EXPECT_NEAR(timing.idle_share, (p - 1.0) / (v * m + p - 1.0), kTiny)
              << to_string(algorithm) << " " << p << " " << m << " " << v;
        }
      }
    }
  }
}

// Qi and others 2023, table 2, whose schedules are made for f = b = w.
TEST(Play, LeavesZeroBubbleTheBubblesOfThePaper) {
  for (const int p : {1, 2, 4, 8, 16}) {
    for (const int m : {2 * p - 1, 2 * p, 4 * p, 4 * p + 3}) {
      const Timing h1 = played({Algorithm::kZeroBubbleH1, p, m}),
                   h2 = played({Algorithm::kZeroBubbleH2, p, m});
      EXPECT_NEAR(h1.bubble, p - 1, kTiny) << p << " " << m << ": (p-1)(f+b-w)";
      EXPECT_NEAR(h2.bubble, 0, kTiny) << p << " " << m << ": (p-1)(f+b-2w)";
      EXPECT_NEAR(h1.makespan, 3 * m + p - 1, kTiny);
      EXPECT_NEAR(played({Algorithm::kZeroBubbleV, p, m, 2}).bubble, 0, kTiny) << p << " " << m;
    }
  }
}

TEST(Play, LeavesZeroBubbleAtMostHalfOfWhat1F1BIsIdle) {
  for (int p = 2; p <= 16; ++p) {
    const double idle = played({Algorithm::kOneForwardOneBackward, p, 2 * p}).idle_share;
    for (const Algorithm algorithm :
         {Algorithm::kZeroBubbleH1, Algorithm::kZeroBubbleH2, Algorithm::kAutomatic}) {
      EXPECT_LE(played({algorithm, p, 2 * p}).idle_share, 0.5 * idle)
          << to_string(algorithm) << " over " << p;
    }
    EXPECT_LE(played({Algorithm::kZeroBubbleV, p, 2 * p, 2}).idle_share, 0.5 * idle) << p;
  }
}

// Each micro-batch crosses p-1 stage boundaries forward and p-1 backward. In GPipe, nothing else
// waits for messages.
TEST(Play, AddsTheTimeOfMessagesThatNothingHides) {
  EXPECT_NEAR(played({Algorithm::kGPipe, 4, 8}, {1, 1, 1, 0.25}).makespan, 33 + 6 * 0.25, kTiny);
  EXPECT_NEAR(played({Algorithm::kForwardOnly, 4, 8}, {1, 1, 1, 0.25}).makespan, 11 + 3 * 0.25,
              kTiny);
  EXPECT_NEAR(played({Algorithm::kZeroBubbleV, 1, 8, 2}, {1, 1, 1, 9}).makespan, 48, kTiny)
      << "a rank sends itself nothing";
}

TEST(Automatic, IsNeverSlowerThanTheFixedSchedulesThatFitItsMemory) {
  for (const Costs& costs : {Costs{1, 1, 1, 0}, Costs{1, 1.4, 0.6, 0.2}, Costs{1, 0.8, 1.2, 0.5},
                             Costs{1, 2, 2, 0}, Costs{3, 1, 1, 1}}) {
    for (const auto& [p, m] : {std::pair(2, 4), {4, 8}, {4, 12}, {8, 16}}) {
      const double h1 = played({Algorithm::kZeroBubbleH1, p, m}, costs).iteration;
      const double h2 = played({Algorithm::kZeroBubbleH2, p, m}, costs).iteration;
      const double plain = played({Algorithm::kOneForwardOneBackward, p, m}, costs).iteration;
      EXPECT_LE(played({Algorithm::kAutomatic, p, m, 1, costs, p}, costs).iteration,
                std::min(h1, plain) + kTiny);
      EXPECT_LE(played({Algorithm::kAutomatic, p, m, 1, costs}, costs).iteration,
                std::min({h1, h2, plain}) + kTiny);
    }
  }
}

TEST(Automatic, UsesMemoryThatTheFixedSchedulesCannotUse) {
  const Costs costs{1, 1.4, 0.6, 0.2};
  const double h1 = played({Algorithm::kZeroBubbleH1, 4, 12}, costs).iteration;
  EXPECT_LT(played({Algorithm::kAutomatic, 4, 12, 1, costs, 5}, costs).iteration, h1 - 1)
      << "H2 needs 7";
  // Backwards take longer than forwards, for which H2 is not made. With memory for 10
  // micro-batches, the automatic schedule has no bubble.
  const Costs slow{1, 2, 2, 0};
  EXPECT_GT(played({Algorithm::kZeroBubbleH2, 4, 12}, slow).bubble, 2);
  EXPECT_NEAR(played({Algorithm::kAutomatic, 4, 12, 1, slow, 10}, slow).bubble, 0, kTiny);
}

TEST(Automatic, KeepsToItsMemoryDownToOneMicroBatch) {
  double before = 1e9;
  for (const int memory : {1, 2, 3, 4, 7}) {
    const Request q{Algorithm::kAutomatic, 4, 12, 1, {}, memory};
    const Schedule schedule = make(q);
    for (int rank = 0; rank < 4; ++rank) EXPECT_LE(count_held(schedule, rank), memory);
    const double now = play(schedule, q.costs).iteration;
    EXPECT_LE(now, before) << "more memory makes nothing slower";
    before = now;
  }
}

TEST(Play, RefusesInvalidCostsAndNamesARankThatWaitsForever) {
  const Schedule schedule = make({Algorithm::kGPipe, 2, 2});
  EXPECT_THROW(play(schedule, {0, 1, 1}), Error);
  EXPECT_THROW(play(schedule, {1, 1, 1, -1}), Error);
  Schedule stuck = schedule;
  std::swap(stuck.actions[1].front(), stuck.actions[1].back());
  try {
    play(stuck, {});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr(
                    "rank 0 waits for ever for what backward of micro-batch 0 in stage 0 needs"));
  }
}

}  // namespace
}  // namespace weft::schedule::pipeline
