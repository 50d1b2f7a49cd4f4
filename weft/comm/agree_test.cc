// Which members a group is formed of again, as pure functions.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "weft/comm/internal/meeting.h"
#include "weft/comm/internal/rendezvous.h"

namespace weft::comm {
namespace agree_test {

using namespace std::chrono_literals;
using internal::agree;
using internal::Arrival;

TEST(Agree, WaitsForSurvivorsAndForTheSizeAndPutsNewcomersLast) {
  const std::vector<Arrival> some{{"new2", -1}, {"3", 3}, {"new1", -1}, {"0", 0}};
  EXPECT_FALSE(agree(some, {{{"0", 0}, {"2", 2}, {"3", 3}}, 0, 1}, false));
  EXPECT_EQ(agree(some, {{{"0", 0}, {"2", 2}, {"3", 3}}, 0, 1}, true),
            (std::vector<Arrival>{{"0", 0}, {"3", 3}, {"new1", -1}, {"new2", -1}}));
  EXPECT_EQ(agree(some, {{{"0", 0}, {"3", 3}}, 3, 1}, false),
            (std::vector<Arrival>{{"0", 0}, {"3", 3}, {"new1", -1}}));
  EXPECT_FALSE(agree(some, {{{"0", 0}, {"3", 3}}, 5, 1}, false));
  EXPECT_THROW(agree(some, {{{"0", 0}, {"3", 3}}, 5, 5}, true), Error);
}

TEST(Agree, DoesNotWaitForRanksThatWillNotBeReplaced) {
  const internal::Awaited awaited{{{"0", 0}, {"3", 3}}, 4, 1, true, {0, 1, 2, 3}};
  const Arrival zero{"0", 0, 0}, three{"3", 3, 3}, for_two{"new1", -1, 2};
  EXPECT_FALSE(agree({zero, three, for_two}, awaited, false));
  EXPECT_EQ(agree({zero, three, for_two}, internal::without(awaited, {1}), false),
            (std::vector<Arrival>{zero, three, for_two}));
  EXPECT_EQ(agree({zero, three}, internal::without(awaited, {1, 2}), false),
            (std::vector<Arrival>{zero, three}));
  internal::Awaited three_at_least = awaited;
  three_at_least.at_least = 3;
  EXPECT_THROW(agree({zero, three}, internal::without(three_at_least, {1, 2}), false), Error);
}

TEST(Agree, DoesNotWaitForANewcomerThatIsLost) {
  internal::Awaited awaited{{{"0", 0}, {"1", 1}}, 4, 1, true, {0, 1}};
  awaited.newcomers = {2, 3};
  const Arrival zero{"0", 0, 0}, one{"1", 1, 1}, two{"new1", -1, 2};
  EXPECT_FALSE(agree({zero, one, two}, awaited, false));
  EXPECT_EQ(agree({zero, one, two}, internal::without(awaited, {3}), false),
            (std::vector<Arrival>{zero, one, two}));
}

TEST(Agree, LeavesOutARankThatWasLostAfterItArrived) {
  const internal::Awaited awaited{{{"0", 0}, {"1", 1}, {"2", 2}}, 3, 1, true, {0, 1, 2}};
  const Arrival zero{"0", 0, 0}, one{"1", 1, 1}, old_two{"new1", -1, 2}, two{"new2", -1, 2},
      new_one{"new3", -1, 1};
  EXPECT_EQ(agree({zero, one, old_two, two}, awaited, false),
            (std::vector<Arrival>{zero, one, two}));
  EXPECT_EQ(agree({zero, one, old_two, two, new_one}, awaited, false),
            (std::vector<Arrival>{zero, new_one, two}));
}

TEST(ReplacedMember, IsOneWhoseRankALaterNewcomerAskedFor) {
  using internal::replaced_member;
  const std::vector<Arrival> members{{"0", 0, 0}, {"new00000002", -1, 1}, {"2", 2, -1}};
  EXPECT_FALSE(replaced_member(members, {}));
  EXPECT_FALSE(replaced_member(members, {1, 1, 7, -1}));  // 2 is the member itself
  EXPECT_EQ(replaced_member(members, {1, 1, 7, 1}), 1);
  EXPECT_EQ(replaced_member(members, {0, 1}), 0);
}

TEST(Agree, PrefersTheReplacementOfALostRankToAnAdditionalRank) {
  const internal::Awaited awaited{{{"0", 0}, {"1", 1}}, 2, 1, true, {0, 1}};
  const Arrival one{"1", 1, 1}, additional{"new1", -1, 2}, for_zero{"new2", -1, 0};
  EXPECT_EQ(agree({additional, one, for_zero}, awaited, false),
            (std::vector<Arrival>{for_zero, one}));
}

TEST(GoneRanks, AreThoseThatWereNotStartedAgain) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_TRUE(internal::lost_ranks(*store).gone.empty());
  const std::string text = "1 3 +1 12 ";
  store->append(internal::kGoneKey, {text.begin(), text.end()});
  EXPECT_EQ(internal::lost_ranks(*store).gone, (std::set<int>{3, 12}));
}

TEST(LostRanks, AreComingUntilTheyHaveJoinedOrAreGivenUp) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string text = "*1 *2 *3 =1 2 *0 *0 ";
  store->append(internal::kGoneKey, {text.begin(), text.end()});
  EXPECT_EQ(internal::lost_ranks(*store).coming, (std::set<int>{0, 3}));
  EXPECT_EQ(internal::lost_ranks(*store).gone, (std::set<int>{2}));
}

TEST(UnreplacedRank, IsALostOneWhosePlaceNoProcessAskedForOrThatIsGivenUp) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto lost = [&] { return internal::unreplaced_rank(*store, 4); };
  EXPECT_EQ(lost(), std::nullopt);
  store->set(internal::kLostKey, std::vector<std::uint8_t>{'1'});
  EXPECT_EQ(lost(), 1);
  internal::name_of_newcomer(*store, 3);
  EXPECT_EQ(lost(), 1);
  internal::name_of_newcomer(*store, 1);
  EXPECT_EQ(lost(), std::nullopt);
  const std::string text = "4 2 ";
  store->append(internal::kGoneKey, {text.begin(), text.end()});
  EXPECT_EQ(lost(), 2);
}

TEST(IsWorthWaiting, WhileAMissingRankIsComingAndTooFewAreThere) {
  using internal::is_worth_waiting;
  internal::Awaited awaited{{{"0", 0}, {"1", 1}}, 2, 2, true, {0, 1}};
  const Arrival zero{"0", 0, 0}, for_one{"new1", -1, 1};
  EXPECT_TRUE(is_worth_waiting({zero}, awaited, {1}));
  EXPECT_FALSE(is_worth_waiting({zero}, awaited, {}));      // nobody replaces it
  EXPECT_FALSE(is_worth_waiting({zero}, awaited, {7}));     // another rank
  EXPECT_FALSE(is_worth_waiting({for_one}, awaited, {1}));  // rank 0 is missing, and hangs
  awaited.at_least = 1;
  EXPECT_FALSE(is_worth_waiting({zero}, awaited, {1}));  // the others can go on
}

TEST(NewcomersAlone, FormAGroupIfTheyReplaceAllRanks) {
  using internal::newcomers_alone;
  const Arrival zero{"0", 0, 0}, for_zero{"new1", -1, 0}, for_one{"new2", -1, 1},
      again{"new3", -1, 1};
  EXPECT_FALSE(newcomers_alone({for_one}, {}, 2));
  EXPECT_FALSE(newcomers_alone({for_one, {"0", 0, -1}}, {}, 2));  // a survivor
  EXPECT_FALSE(newcomers_alone({for_one, for_zero}, {}, 0));      // the size may change
  EXPECT_EQ(newcomers_alone({for_one, zero, for_zero, again}, {}, 2),
            (std::vector<Arrival>{for_zero, again}));
  EXPECT_EQ(newcomers_alone({for_one}, {0}, 2), (std::vector<Arrival>{for_one}));
}

TEST(Agree, PutsNewcomersAtTheLostRanksThatTheyAskFor) {
  const internal::Awaited awaited{{{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}}, 4, 1, true};
  const Arrival zero{"0", 0, 0}, three{"3", 3, 3}, for_two{"new1", -1, 2}, for_one{"new2", -1, 1},
      for_any{"new3", -1, -1};
  EXPECT_FALSE(agree({zero, three, for_two}, awaited, false));
  EXPECT_EQ(agree({for_two, three, for_one, zero}, awaited, false),
            (std::vector<Arrival>{zero, for_one, for_two, three}));
  // A spare takes the place that is left, but rank 1 may still come.
  EXPECT_FALSE(agree({for_two, three, for_any, zero}, awaited, false));
  EXPECT_EQ(agree({for_two, three, for_any, zero}, awaited, true),
            (std::vector<Arrival>{zero, for_any, for_two, three}));
  // With too few, the ranks move up.
  EXPECT_EQ(agree({three, for_two}, awaited, true), (std::vector<Arrival>{three, for_two}));
}

}  // namespace agree_test
}  // namespace weft::comm
