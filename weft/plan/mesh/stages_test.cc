#include "weft/plan/mesh/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "weft/base/error.h"

namespace weft::plan {
namespace stages_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Block> of_seconds(const std::vector<double>& seconds) {
  std::vector<Block> blocks;
  for (const double s : seconds) blocks.push_back({s, 1, 1});
  return blocks;
}

std::string refusal(const std::vector<Block>& blocks, const StageLimits& limits) {
  try {
    cut_stages(blocks, limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Time, memory and bytes of a partition, computed from the definitions in stages.h.
struct Outcome {
  double slowest = 0;
  std::int64_t fullest = 0, bytes = 0;
};

Outcome outcome_of(const std::vector<Block>& blocks, const std::vector<int>& cuts,
                   const StageLimits& limits) {
  Outcome outcome;
  std::vector<int> edges = cuts;
  edges.insert(edges.begin(), 0);
  edges.push_back(static_cast<int>(blocks.size()));
  for (std::size_t s = 0; s + 1 < edges.size(); ++s) {
    double seconds = 0;
    std::int64_t memory = 0, borders = 0;
    for (int i = edges[s]; i < edges[s + 1]; ++i) {
      seconds += blocks[static_cast<std::size_t>(i)].seconds;
      memory += blocks[static_cast<std::size_t>(i)].memory;
    }
    if (s > 0) borders += blocks[static_cast<std::size_t>(edges[s]) - 1].boundary_bytes;
    if (s + 2 < edges.size())
      borders += blocks[static_cast<std::size_t>(edges[s + 1]) - 1].boundary_bytes;
    if (limits.bandwidth) seconds += 2 * static_cast<double>(borders) / *limits.bandwidth;
    outcome.slowest = std::max(outcome.slowest, seconds);
    outcome.fullest = std::max(outcome.fullest, memory);
  }
  for (const int cut : cuts)
    outcome.bytes += blocks[static_cast<std::size_t>(cut) - 1].boundary_bytes;
  return outcome;
}

// Calls visit(cuts) for every possible choice of cuts.
void each_partition(int blocks, int stages,
                    const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> cuts;
  const std::function<void(int)> choose = [&](int from) {
    if (static_cast<int>(cuts.size()) == stages - 1) return visit(cuts);
    for (int cut = from; cut < blocks; ++cut) {
      cuts.push_back(cut);
      choose(cut + 1);
      cuts.pop_back();
    }
  };
  choose(1);
}

// Times are whole numbers, so that sums are exact in any order.
std::vector<Block> random_blocks(std::mt19937& random, int count) {
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  std::vector<Block> blocks;
  for (int i = 0; i < count; ++i) blocks.push_back({1.0 + draw(20), 1 + draw(9), 8 * draw(6)});
  return blocks;
}

void compare_with_all(std::mt19937& random, bool bandwidth, bool memory) {
  for (int n = 1; n <= 12; ++n) {
    for (int stages = std::min(2, n); stages <= std::min(4, n); ++stages) {
      const std::vector<Block> blocks = random_blocks(random, n);
      StageLimits limits{.stages = stages};
      if (bandwidth) limits.bandwidth = 4;
      if (memory) limits.memory = 9 + static_cast<int>(random() % 20);
      Outcome best{.slowest = std::numeric_limits<double>::infinity()};
      each_partition(n, stages, [&](const std::vector<int>& cuts) {
        const Outcome outcome = outcome_of(blocks, cuts, limits);
        if (limits.memory && outcome.fullest > *limits.memory) return;
        if (std::pair(outcome.slowest, outcome.bytes) < std::pair(best.slowest, best.bytes))
          best = outcome;
      });
      if (best.slowest == std::numeric_limits<double>::infinity()) {
        EXPECT_THAT(refusal(blocks, limits), HasSubstr("cannot hold"));
        continue;
      }
      const StagePlan plan = cut_stages(blocks, limits);
      const Outcome planned = outcome_of(blocks, plan.cuts, limits);
      EXPECT_EQ(plan.slowest, best.slowest) << n << " blocks, " << stages << " stages";
      EXPECT_EQ(planned.slowest, best.slowest);
      EXPECT_EQ(planned.bytes, best.bytes);
      EXPECT_EQ(plan.boundary_bytes, best.bytes);
      EXPECT_LE(planned.fullest, limits.memory.value_or(planned.fullest));
    }
  }
}

TEST(CutStages, AreAsGoodAsTheBestOfAllPartitions) {
  std::mt19937 random(1);
  for (int round = 0; round < 10; ++round) {
    for (const bool bandwidth : {false, true}) {
      for (const bool memory : {false, true}) compare_with_all(random, bandwidth, memory);
    }
  }
}

// Filling stages up to the average from the front gives 5 | 4 1 | 5 5 2. Its slowest stage takes
// 12.
TEST(CutStages, FindABetterPartitionThanAGreedyFill) {
  const StagePlan plan = cut_stages(of_seconds({5, 4, 1, 5, 5, 2}), {.stages = 3});
  EXPECT_EQ(plan.slowest, 9);
  EXPECT_THAT(plan.cuts, ElementsAre(2, 4));
  EXPECT_THAT(plan.seconds, ElementsAre(9, 6, 7));
  EXPECT_THAT(plan.reason,
              HasSubstr("stage 0 is the slowest with 9 s (blocks 0 to 1), 23 % above the average"));
}

TEST(CutStages, SupportOneStageAndOneStageForEachBlock) {
  const auto blocks = of_seconds({1, 2, 3});
  EXPECT_THAT(cut_stages(blocks, {.stages = 1}).cuts, IsEmpty());
  EXPECT_EQ(cut_stages(blocks, {.stages = 1}).slowest, 6);
  EXPECT_THAT(cut_stages(blocks, {.stages = 3}).seconds, ElementsAre(1, 2, 3));
  EXPECT_THAT(cut_stages(blocks, {.stages = 3}).reason, HasSubstr("block 2 alone"));
}

TEST(CutStages, CutWhereFewBytesCrossIfThatCostsNoTime) {
  std::vector<Block> blocks = of_seconds({4, 0, 4});
  blocks[0].boundary_bytes = 100;
  EXPECT_THAT(cut_stages(blocks, {.stages = 2}).cuts, ElementsAre(2));
  blocks[1].boundary_bytes = 1000;
  EXPECT_THAT(cut_stages(blocks, {.stages = 2}).cuts, ElementsAre(1));
}

TEST(CutStages, MoveTheCutIfMessagesTakeLongerThanTheBlocks) {
  std::vector<Block> blocks = of_seconds({3, 3, 2, 2});
  blocks[1].boundary_bytes = 40;
  EXPECT_THAT(cut_stages(blocks, {.stages = 2}).cuts, ElementsAre(2));
  const StagePlan plan = cut_stages(blocks, {.stages = 2, .bandwidth = 10});
  EXPECT_THAT(plan.cuts, ElementsAre(1));
  EXPECT_THAT(plan.seconds, ElementsAre(3.2, 7.2)) << "a byte each way at ten a second";
}

TEST(CutStages, RefuseAndNameTheNearestPossiblePlan) {
  const auto blocks = of_seconds({1, 1, 1, 1});
  EXPECT_THAT(refusal(blocks, {.stages = 5}), HasSubstr("5 stages of 4 blocks; use 4 or fewer"));
  EXPECT_THAT(refusal(blocks, {.stages = 0}), HasSubstr("0 stages"));
  EXPECT_THAT(refusal({}, {.stages = 1}), HasSubstr("without blocks"));
  EXPECT_THAT(
      refusal(blocks, {.stages = 1, .memory = 2}),
      HasSubstr("1 stage of at most 2 bytes cannot hold the model (4 bytes); use 2 stages"));
  EXPECT_THAT(refusal({{1, 5, 1}, {1, 12, 1}}, {.stages = 2, .memory = 10}),
              HasSubstr("block 1 alone takes 12 bytes, more than the 10 of a stage"));
  EXPECT_THAT(refusal({{-1, 5, 1}}, {.stages = 1}),
              HasSubstr("block 0 has a negative or infinite time"));
  EXPECT_THAT(refusal(blocks, {.stages = 2, .bandwidth = 0}), HasSubstr("bandwidth"));
}

TEST(CutStages, PlanAThousandBlocksFast) {
  std::mt19937 random(2);
  const StagePlan plan = cut_stages(random_blocks(random, 1000), {.stages = 8});
  double sum = 0;
  for (const double seconds : plan.seconds) sum += seconds;
  EXPECT_LE(plan.slowest, sum / 8 + 20) << "no block takes more than 20";
}

}  // namespace stages_test
}  // namespace weft::plan
