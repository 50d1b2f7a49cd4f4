#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "weft/net/memory/internal/page_ranges.h"

namespace weft::net::internal {
namespace page_ranges_test {

using Pairs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

Pairs pairs(const PageRanges& ranges) {
  Pairs all;
  for (const auto& range : ranges) all.emplace_back(range.at, range.bytes);
  return all;
}

TEST(PageRanges, JoinsNeighbors) {
  PageRanges ranges;
  EXPECT_TRUE(ranges.empty());
  ranges.add(30, 10);
  ranges.add(10, 5);
  EXPECT_EQ(pairs(ranges), (Pairs{{10, 5}, {30, 10}}));
  ranges.add(15, 5);  // after the first
  EXPECT_EQ(pairs(ranges), (Pairs{{10, 10}, {30, 10}}));
  ranges.add(25, 5);  // before the second
  EXPECT_EQ(pairs(ranges), (Pairs{{10, 10}, {25, 15}}));
  ranges.add(20, 5);  // between them
  EXPECT_EQ(pairs(ranges), (Pairs{{10, 30}}));
  ranges.add(0, 10);
  EXPECT_EQ(ranges.back().end(), 40u);
  ranges.pop_back();
  EXPECT_TRUE(ranges.empty());
}

TEST(PageRanges, TakesTheLowestFit) {
  PageRanges ranges;
  ranges.add(0, 2);
  ranges.add(10, 8);
  ranges.add(20, 4);
  EXPECT_EQ(ranges.take(9), std::nullopt);
  EXPECT_EQ(ranges.take(4), 10u);
  EXPECT_EQ(ranges.take(4), 14u);
  EXPECT_EQ(ranges.take(3), 20u);
  EXPECT_EQ(pairs(ranges), (Pairs{{0, 2}, {23, 1}}));
}

TEST(PageRanges, AreDisjointAndLoseNothing) {
  constexpr std::uint64_t kAll = 4096;
  PageRanges free;
  free.add(0, kAll);
  Pairs taken;
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    if (const std::uint64_t bytes = 1 + random() % 100; random() % 2 == 0) {
      if (const auto at = free.take(bytes)) taken.emplace_back(*at, bytes);
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      free.add(taken.back().first, taken.back().second);
      taken.pop_back();
    }
    Pairs all = pairs(free);
    for (std::size_t k = 1; k < all.size(); ++k)
      ASSERT_LT(all[k - 1].first + all[k - 1].second, all[k].first) << "adjacent";
    all.insert(all.end(), taken.begin(), taken.end());
    std::sort(all.begin(), all.end());
    std::uint64_t next = 0;
    for (const auto& [at, bytes] : all) {
      ASSERT_EQ(at, next);
      next = at + bytes;
    }
    ASSERT_EQ(next, kAll);
  }
}

}  // namespace page_ranges_test
}  // namespace weft::net::internal
