// The number of ranks that a job chooses by itself.
#include "weft/launch/internal/autoscale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace weft::launch::internal {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kNames{"localhost", "here.example", "here"};

TEST(Discovery, CountsTheSlotsOfThisHostAlone) {
  EXPECT_EQ(slots_of("other:8\nhere:3\n", kNames).slots, 3);
  EXPECT_EQ(slots_of("localhost:4", kNames).slots, 4);
  EXPECT_EQ(slots_of(" here.example:2 \r\n\n", kNames).slots, 2);
  EXPECT_EQ(slots_of("here\n", kNames).slots, 1);  // Horovod: one slot without a number
  EXPECT_EQ(slots_of("other:8\n", kNames).slots, 0);
  EXPECT_EQ(slots_of("", kNames).slots, 0);
}

TEST(Discovery, NamesTheLineThatHasAnotherFormat) {
  for (const char* bad : {"here:x", "here:", "here:-1", ":3", "no such file", "here:1:x"}) {
    const auto found = slots_of(std::string("here:2\n") + bad + "\n", kNames);
    EXPECT_FALSE(found.slots) << bad;
    EXPECT_EQ(found.wrong, bad);
  }
}

TEST(Discovery, KnowsThisHostAsLocalhost) {
  EXPECT_THAT(names_of_this_host(), Contains("localhost"));
}

// A job whose throughput is a function of its number of ranks: the numbers that it goes through.
struct ScaledJob {
  std::function<double(int)> rate;
  Throughputs::Limits limits;
  int ranks;
  Throughputs known = {};
  Time now = Time{} + seconds(1000);

  std::vector<int> runs(seconds time) {
    std::vector<int> sizes;
    for (const Time end = now + time; now < end; now += seconds(1)) {
      known.add(ranks, rate(ranks), now);
      const auto next = known.next(limits, now);
      if (!next) continue;
      EXPECT_NE(*next, ranks);
      EXPECT_GE(*next, limits.least);
      EXPECT_LE(*next, limits.most);
      sizes.push_back(ranks = *next);
    }
    return sizes;
  }
};

TEST(Throughputs, WaitUntilANumberOfRanksWasMeasured) {
  ScaledJob job{[](int n) { return 100.0 * n; }, {.efficiency = 0.8, .least = 1, .most = 8}, 8};
  EXPECT_THAT(job.runs(Throughputs::kSettle + Throughputs::kMeasure), IsEmpty());
  EXPECT_THAT(job.runs(seconds(1)), ElementsAre(1));
}

TEST(Throughputs, GoBackToAllRanksWhereThroughputGrowsWithThem) {
  ScaledJob job{[](int n) { return 100.0 * n; }, {.efficiency = 0.8, .least = 1, .most = 8}, 8};
  EXPECT_THAT(job.runs(seconds(300)), ElementsAre(1, 8));
}

TEST(Throughputs, FindTheLargestNumberThatUsesItsRanksWellEnough) {
  // Amdahl's law with a serial part of 5 %: per rank 1 / (1 + 0.05 (n - 1)). At least 0.8 of that of
  // 4 ranks, the fewest that are allowed: 1 + 0.05 (n - 1) <= 1.15 / 0.8, so n <= 9.75.
  const auto amdahl = [](int n) { return 100.0 * n / (1 + 0.05 * (n - 1)); };
  ScaledJob job{amdahl, {.efficiency = 0.8, .least = 4, .most = 16}, 16};
  job.runs(seconds(200));
  EXPECT_EQ(job.ranks, 9);
  EXPECT_THAT(job.runs(seconds(200)), IsEmpty());
}

TEST(Throughputs, StayAtTheFewestRanksWhereMoreHelpNothing) {
  ScaledJob job{[](int) { return 100.0; }, {.efficiency = 0.5, .least = 1, .most = 4}, 4};
  job.runs(seconds(200));
  EXPECT_EQ(job.ranks, 2);
  EXPECT_THAT(job.runs(seconds(200)), IsEmpty());
}

TEST(Throughputs, DoNotFollowNoise) {
  int turn = 0;
  const auto noisy = [&](int n) { return 100.0 * n * (++turn % 2 == 0 ? 1.04 : 0.96); };
  ScaledJob job{noisy, {.efficiency = 0.97, .least = 1, .most = 4}, 4};
  job.runs(seconds(100));
  EXPECT_THAT(job.runs(seconds(500)), IsEmpty());
}

TEST(Throughputs, TryRanksAgainThatWereTooManyLongAgo) {
  bool slow = true;
  ScaledJob job{[&](int n) { return slow ? 100.0 : 100.0 * n; },
                {.efficiency = 0.8, .least = 1, .most = 4},
                4};
  job.runs(seconds(100));
  EXPECT_EQ(job.ranks, 1);
  slow = false;
  EXPECT_THAT(job.runs(seconds(200)), IsEmpty());
  job.runs(std::chrono::duration_cast<seconds>(Throughputs::kForget + minutes(2)));
  EXPECT_EQ(job.ranks, 4);
}

TEST(Throughputs, KeepWithinLimitsThatChange) {
  ScaledJob job{[](int n) { return 100.0 * n; }, {.efficiency = 0.8, .least = 1, .most = 4}, 4};
  job.runs(seconds(100));
  EXPECT_EQ(job.ranks, 4);
  job.limits.most = 2;
  EXPECT_THAT(job.runs(seconds(100)), ElementsAre(2));
  job.limits.most = 4;
  EXPECT_THAT(job.runs(seconds(100)), ElementsAre(4));
}

}  // namespace
}  // namespace weft::launch::internal
