// The checker of the other tests, on histories whose answer is known.
#include "weft/store/testing/linearizability.h"

#include <gtest/gtest.h>

namespace weft::store {
namespace linearizability_test {

using Kind = Operation::Kind;

Operation set(std::int64_t begin, std::int64_t end, const std::string& value) {
  return {.kind = Kind::kSet, .begin = begin, .end = end, .argument = value};
}

Operation get(std::int64_t begin, std::int64_t end, const std::string& value) {
  return {.kind = Kind::kGet, .begin = begin, .end = end, .found = value};
}

// Figure 1 of Herlihy and Wing, "Linearizability: A Correctness Condition for Concurrent Objects",
// 1990, for registers: H5 and H6 of section 2.2.
TEST(Linearizability, AcceptsARegisterThatMovesForward) {
  EXPECT_TRUE(is_linearizable(
      {set(0, 10, "0"), set(11, 40, "1"), get(15, 20, "1"), set(21, 30, "0"), get(41, 50, "0")}));
}

TEST(Linearizability, RefusesARegisterThatGoesBack) {
  // Reads 1, then 0, although only one write can have come in between.
  EXPECT_FALSE(
      is_linearizable({set(0, 10, "0"), set(11, 40, "1"), get(15, 20, "1"), get(21, 30, "0")}));
}

TEST(Linearizability, RefusesAStaleReadAndALostWrite) {
  EXPECT_FALSE(is_linearizable({set(0, 1, "a"), set(2, 3, "b"), get(4, 5, "a")}));
  EXPECT_FALSE(is_linearizable({set(0, 1, "a"), {.kind = Kind::kGet, .begin = 2, .end = 3}}));
}

TEST(Linearizability, LetsACallWithoutAnAnswerTakeEffectLaterOrNever) {
  const Operation lost = set(0, INT64_MAX, "a");
  const Operation nothing{.kind = Kind::kGet, .begin = 1, .end = 2};
  EXPECT_TRUE(is_linearizable({lost, nothing}));
  EXPECT_TRUE(is_linearizable({lost, nothing, get(3, 4, "a")}));
  EXPECT_FALSE(is_linearizable({lost, get(3, 4, "a"), {.kind = Kind::kGet, .begin = 5, .end = 6}}));
}

TEST(Linearizability, RefusesACountThatAppliesACallTwice) {
  const auto add = [](std::int64_t begin, const std::string& sum) {
    return Operation{
        .kind = Kind::kAdd, .begin = begin, .end = begin + 1, .argument = "1", .found = sum};
  };
  EXPECT_TRUE(is_linearizable({add(0, "1"), add(2, "2")}));
  EXPECT_FALSE(is_linearizable({add(0, "1"), add(2, "3")}));
}

TEST(Linearizability, ChecksTheAnswersOfSwapsAndErasures) {
  const Operation swap{.kind = Kind::kSwap, .begin = 2, .end = 3, .argument = "b", .expected = "a"};
  Operation failed = swap;
  failed.done = false;
  failed.found = "a";
  const Operation erase{.kind = Kind::kErase, .begin = 4, .end = 5};
  Operation absent = erase;
  absent.done = false;
  EXPECT_TRUE(is_linearizable({set(0, 1, "a"), swap, get(6, 7, "b")}));
  EXPECT_FALSE(is_linearizable({set(0, 1, "a"), failed}));
  EXPECT_TRUE(is_linearizable({set(0, 1, "a"), erase}));
  EXPECT_FALSE(is_linearizable({set(0, 1, "a"), absent}));
}

}  // namespace linearizability_test
}  // namespace weft::store
