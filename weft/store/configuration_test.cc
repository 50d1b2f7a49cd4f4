#include "weft/store/internal/configuration.h"

#include <gtest/gtest.h>

#include <numeric>

#include "weft/store/internal/membership.h"
#include "weft/store/status.h"

namespace weft::store {
namespace configuration_test {

using namespace internal;

std::vector<MemberId> first_ids(MemberId count) {
  std::vector<MemberId> ids(count);
  std::iota(ids.begin(), ids.end(), MemberId{1});
  return ids;
}

Configuration of(const std::vector<MemberId>& voters, const std::vector<MemberId>& others = {}) {
  Configuration configuration;
  configuration.voters = voters;
  for (MemberId id = 1; id < 20; ++id) {
    const bool is_member = std::count(voters.begin(), voters.end(), id) > 0 ||
                           std::count(others.begin(), others.end(), id) > 0;
    if (!is_member) continue;
    configuration.members.push_back({id, static_cast<std::uint32_t>(100 + id), id, "host"});
    configuration.next_id = id + 1;
  }
  return configuration;
}

auto in_set(unsigned set) {
  return [set](MemberId id) { return (set >> id & 1) != 0; };
}

TEST(StoreStatus, SaysWhetherTheVotersDecideWithoutANode) {
  const auto decides = [](std::vector<std::uint32_t> voters, std::uint32_t lost) {
    return StoreStatus{.voters = std::move(voters)}.decides_without(lost);
  };
  EXPECT_TRUE(decides({7, 5}, 5));
  EXPECT_FALSE(decides({7, 5}, 7));  // it joined first
  EXPECT_TRUE(decides({7, 5, 6}, 7));
  EXPECT_FALSE(decides({7}, 7));
  EXPECT_TRUE(decides({7}, 3));  // no voter
}

TEST(Quorum, IsAMajorityOrTheHalfWithTheFirstVoter) {
  const auto decides = [](MemberId count, unsigned set) {
    return is_quorum(first_ids(count), in_set(set));
  };
  EXPECT_TRUE(decides(1, 0b10));
  EXPECT_TRUE(decides(2, 0b010));   // the first of two
  EXPECT_FALSE(decides(2, 0b100));  // the second of two
  EXPECT_FALSE(decides(3, 0b0010));
  EXPECT_TRUE(decides(3, 0b1100));
  EXPECT_TRUE(decides(4, 0b00110));
  EXPECT_FALSE(decides(4, 0b11000));
  EXPECT_FALSE(is_quorum(std::vector<MemberId>{}, in_set(~0u)));
}

// Of any two disjoint sets of voters, at most one decides: a partition never makes two stores.
TEST(Quorum, NeverExistsTwiceWithoutACommonVoter) {
  for (MemberId count = 1; count <= kMaxStoreVoters; ++count) {
    for (unsigned set = 0; set < 1u << (count + 1); ++set)
      EXPECT_FALSE(is_quorum(first_ids(count), in_set(set)) &&
                   is_quorum(first_ids(count), in_set(~set)))
          << count << " voters, " << set;
  }
}

// The reason for joint consensus: with a change in one step, the old and the new voters could both
// decide without a common voter.
TEST(Quorum, ExistsTwiceIfAVoterIsAddedInOneStepAndNotInTwo) {
  const Configuration two = of({1, 2}), three = of({1, 2, 3});
  EXPECT_TRUE(is_quorum(two, in_set(0b0010)));
  EXPECT_TRUE(is_quorum(three, in_set(0b1100)));
  const Configuration joint = begin_change(two, three);
  EXPECT_TRUE(joint.is_joint());
  for (unsigned set = 0; set < 16; ++set) {
    EXPECT_FALSE(is_quorum(joint, in_set(set)) && is_quorum(two, in_set(~set)));
    EXPECT_FALSE(is_quorum(joint, in_set(set)) && is_quorum(three, in_set(~set)));
  }
}

TEST(Configuration, AgreesOnTheHighestIndexThatAQuorumHas) {
  const std::vector<Index> match = {0, 9, 5, 7, 3};
  const auto of_member = [&](MemberId id) { return match[id]; };
  EXPECT_EQ(agreed_index(of({1, 2, 3}), of_member), 7u);
  EXPECT_EQ(agreed_index(of({1, 4}), of_member), 9u);
  EXPECT_EQ(agreed_index(of({2, 3, 4}), of_member), 5u);
  EXPECT_EQ(agreed_index(begin_change(of({1, 2, 3}), of({2, 4})), of_member), 5u);
}

TEST(Configuration, KeepsOldVotersUntilAChangeEnds) {
  const Configuration joint = begin_change(of({1, 2, 3}), of({2, 4}, {5}));
  EXPECT_NE(joint.find(1), nullptr);
  EXPECT_TRUE(joint.is_voter(1));
  const Configuration done = end_change(joint);
  EXPECT_FALSE(done.is_joint());
  EXPECT_EQ(done.voters, (std::vector<MemberId>{2, 4}));
  EXPECT_EQ(done.find(1), nullptr);
  EXPECT_EQ(done.find(3), nullptr);
  EXPECT_NE(done.find(5), nullptr);
}

TEST(Membership, ReplacesALostVoterByAFollowerThatHasCaughtUp) {
  const auto view = [](MemberId id) { return MemberView{id == 2, id != 2 && id != 8}; };
  const Configuration now = of({1, 2, 3, 4, 5, 6, 7}, {8, 9});
  const auto next = next_change(now, view);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->voters, (std::vector<MemberId>{1, 3, 4, 5, 6, 7, 9}));
  EXPECT_EQ(next->find(2), nullptr);
  EXPECT_NE(next->find(8), nullptr);
}

TEST(Membership, MakesVotersUpToSevenAndThenRests) {
  const auto all_well = [](MemberId) { return MemberView{false, true}; };
  const auto next = next_change(of({1}, {2, 3, 4, 5, 6, 7, 8, 9}), all_well);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->voters, first_ids(7));
  EXPECT_FALSE(next_change(*next, all_well));
}

TEST(Membership, LetsALostFollowerLeave) {
  const auto view = [](MemberId id) { return MemberView{id == 3, false}; };
  const auto next = next_change(of({1, 2}, {3}), view);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->voters, (std::vector<MemberId>{1, 2}));
  EXPECT_EQ(next->find(3), nullptr);
  EXPECT_FALSE(begin_change(of({1, 2}, {3}), *next).is_joint());
}

TEST(Membership, GivesANewcomerANewIdInPlaceOfTheFormerMemberOfItsNode) {
  const Configuration next = with_newcomer(of({1, 2, 3}), {0, 102, 77, "new"});
  EXPECT_EQ(next.voters, (std::vector<MemberId>{1, 3}));
  EXPECT_EQ(next.find(2), nullptr);
  EXPECT_EQ(next.find(4)->address, "new");
  EXPECT_EQ(next.next_id, 5u);
}

}  // namespace configuration_test
}  // namespace weft::store
