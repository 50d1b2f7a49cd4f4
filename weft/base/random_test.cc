#include "weft/base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "weft/base/error.h"

namespace weft {
namespace {

using Counter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// The vectors of philox4x32 with 10 rounds in kat_vectors of Random123 1.14, the reference
// implementation of the paper's authors.
TEST(Philox, MatchesTheKnownAnswersOfRandom123) {
  EXPECT_EQ(philox4x32(Counter{}, PhiloxKey{}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(Counter{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                       PhiloxKey{0xffffffff, 0xffffffff}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(Counter{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       PhiloxKey{0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, StartsWithTheBlockOfItsAddress) {
  Random zero(0);
  for (const std::uint32_t word : {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u})
    EXPECT_EQ(zero.next_u32(), word);
  Random random(0x299f31d0a4093822, 7, 0x0370734413198a2e);
  for (const std::uint32_t block : {0u, 1u}) {
    for (const std::uint32_t word :
         philox4x32({block, 7, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}))
      EXPECT_EQ(random.next_u32(), word);
  }
}

TEST(Random, FillsWithTheWordsThatFollow) {
  for (const std::size_t before : {0, 1, 3, 4}) {
    for (const std::size_t count : {0, 1, 31, 32, 33, 784}) {
      Random one(5, 6, 7), other(5, 6, 7);
      for (std::size_t i = 0; i < before; ++i) EXPECT_EQ(one.next_u32(), other.next_u32());
      std::vector<std::uint32_t> words(count);
      one.fill(words);
      for (const std::uint32_t word : words) EXPECT_EQ(word, other.next_u32());
      EXPECT_EQ(one.next_u32(), other.next_u32());
    }
  }
}

TEST(Random, DependsOnEveryPartOfTheAddress) {
  std::set<std::uint64_t> seen;
  for (const std::uint64_t seed : {0ull, 1ull, 1ull << 32}) {
    for (const std::uint32_t stream : {0u, 1u}) {
      for (const std::uint64_t index : {0ull, 1ull, 1ull << 32})
        seen.insert(Random(seed, stream, index).next_u64());
    }
  }
  EXPECT_EQ(seen.size(), 18u);
}

TEST(Random, UniformNumbersAreUniformInTheUnitIntervalAndBelowOne) {
  Random random(3);
  double sum = 0, squares = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double value = i % 2 ? random.uniform() : static_cast<double>(random.uniform_float());
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
    squares += value * value;
  }
  // Five standard errors around the moments of the uniform distribution.
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kCount));
}

TEST(Random, BoundedNumbersAreUnbiasedEvenIfAModuloWouldNotBe) {
  Random random(5);
  // With this bound a plain multiplication or modulo would make one half of the range twice as
  // likely as the other.
  const std::uint64_t bound = (3ull << 62);
  int counts[3] = {};
  constexpr int kCount = 30000;
  for (int i = 0; i < kCount; ++i) {
    const std::uint64_t value = random.below(bound);
    ASSERT_LT(value, bound);
    ++counts[value >> 62];
  }
  for (const int count : counts) EXPECT_NEAR(count, kCount / 3, 5 * std::sqrt(kCount * 2.0 / 9));
  EXPECT_EQ(random.below(1), 0u);
  EXPECT_THROW(random.below(0), Error);
}

TEST(Permutation, HoldsEveryNumberOnceAndRepeatsForItsSeedAndEpoch) {
  auto order = permutation(1000, 1, 2);
  EXPECT_EQ(order, permutation(1000, 1, 2));
  EXPECT_NE(order, permutation(1000, 1, 3));
  EXPECT_NE(order, permutation(1000, 2, 2));
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_TRUE(permutation(0, 1, 1).empty());
  EXPECT_THAT(permutation(1, 1, 1), testing::ElementsAre(0));
  EXPECT_THROW(permutation(-1, 1, 1), Error);
}

TEST(Permutation, EveryOrderIsEquallyLikely) {
  std::map<std::vector<std::int64_t>, int> counts;
  constexpr int kCount = 24000;
  for (int epoch = 0; epoch < kCount; ++epoch)
    ++counts[permutation(4, 9, static_cast<std::uint64_t>(epoch))];
  ASSERT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts)
    EXPECT_NEAR(count, kCount / 24, 5 * std::sqrt(kCount / 24.0));
}

TEST(DropoutFactors, DependOnAddressAndNumberOnly) {
  const DropoutAddress address{0xa4093822299f31d0, 5};
  const float kept = 1 / 0.75F;
  std::vector<float> whole(1000);
  dropout_factors(whole, 0, 0.25, address);
  for (std::uint32_t i = 0; i < whole.size(); ++i) {
    const std::uint32_t word =
        philox4x32({i / 4, 0x64726f70, 5, 0}, {0x299f31d0, 0xa4093822})[i % 4];
    EXPECT_EQ(whole[i], word < 0x40000000 ? 0 : kept) << i;
  }
  for (const std::uint64_t first : {0, 1, 6, 7, 991}) {
    std::vector<float> part(9);
    dropout_factors(part, first, 0.25, address);
    EXPECT_TRUE(
        std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)))
        << first;
  }
}

TEST(DropoutFactors, DifferForOtherMasksSeedsAndDistantIndices) {
  const auto of = [](std::uint64_t first, const DropoutAddress& address) {
    std::vector<float> factors(256);
    dropout_factors(factors, first, 0.5, address);
    return factors;
  };
  std::set<std::vector<float>> all;
  for (const std::uint64_t seed : {1, 2}) {
    for (const std::uint64_t draw : {0, 1}) {
      for (const int power : {0, 34, 35, 36})
        all.insert(of(power == 0 ? 0 : std::uint64_t{1} << power, {seed, draw}));
    }
  }
  EXPECT_EQ(all.size(), 16U);
}

TEST(SystemRandom, HasTheLengthAndDiffers) {
  EXPECT_EQ(random_bytes(0), "");
  EXPECT_EQ(random_bytes(33).size(), 33U);
  EXPECT_NE(random_bytes(32), random_bytes(32));
  EXPECT_NE(random_number(), random_number());
}

}  // namespace
}  // namespace weft
