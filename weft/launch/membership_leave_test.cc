// Nodes that leave the job by themselves, such as before their machine is taken away.
#include <gtest/gtest.h>

#include "weft/launch/membership.h"
#include "weft/launch/testing/cluster.h"

namespace weft::launch {
namespace {

using Phase = RankPhase;
using testing_nodes::Cluster;

const StopRequest kNotice{"a notice, on node 0", 143, 30'000};

TEST(Membership, MovesTheRanksOfANodeThatLeavesToFreePlaces) {
  Cluster job({.min_nodes = 2, .max_nodes = 3, .max_ranks = 4, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  job.node(0).leave = kNotice;
  const Membership membership = job.settle();
  EXPECT_EQ(membership.end, "");
  EXPECT_EQ(membership.leaving, std::set<int>{0});
  EXPECT_EQ(job.places(), (std::vector<int>{2, 2, 1, 1}));
  EXPECT_EQ(membership.notes.rbegin()->second,
            "rank 1 leaves with node 0; a new process on node 2 replaces it (2 of 9)");
  job.lose(0);
  EXPECT_EQ(job.settle().leaving, std::set<int>{});
  EXPECT_EQ(job.membership().end, "");
}

TEST(Membership, StartsTheProcessesThatReplaceRanksBeforeTheseLeave) {
  Cluster job({.min_nodes = 2, .max_nodes = 3, .max_ranks = 4, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  job.node(0).leave = kNotice;
  job.settle(Phase::kStarting);
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1, 1})) << "the ranks train on";
  EXPECT_EQ(job.membership().successors.size(), 2U);
  EXPECT_EQ(job.membership().successors.at(1).node, 2);
  EXPECT_EQ(membership_of(to_text(job.membership())), job.membership());
  // One has loaded, and waits for the other one.
  const Placement& first = job.membership().successors.at(0);
  job.node(2).ranks[0] = {first.incarnation, Phase::kWaiting};
  const MembershipPolicy policy{
      .min_nodes = 2, .max_nodes = 3, .max_ranks = 4, .max_replacements = 9};
  EXPECT_EQ(next_membership(job.membership(), job.reports(), policy, false), job.membership());
  job.settle(Phase::kWaiting);
  EXPECT_EQ(job.places(), (std::vector<int>{2, 2, 1, 1}));
  EXPECT_TRUE(job.membership().successors.empty());
  EXPECT_EQ(job.membership().replacements, 2);
  EXPECT_TRUE(job.membership().gone.empty());
  EXPECT_EQ(job.settle().end, "");
}

TEST(Membership, UsesTheSuccessorOfALeavingRankThatIsLostBefore) {
  for (const Phase phase : {Phase::kLost, Phase::kFailed}) {
    Cluster job({.min_nodes = 2, .max_nodes = 3, .max_ranks = 4, .max_replacements = 9});
    for (int node = 0; node < 3; ++node) job.join(node, 2);
    job.settle();
    job.node(0).leave = kNotice;
    job.settle(Phase::kStarting);
    job.end_rank(0, phase, 137);  // failed: the group has formed again with its successor
    job.settle(Phase::kStarting);
    EXPECT_EQ(job.places(), (std::vector<int>{2, 0, 1, 1}));
    job.settle(Phase::kWaiting);
    EXPECT_EQ(job.places(), (std::vector<int>{2, 2, 1, 1}));
    EXPECT_EQ(job.membership().replacements, 2);
    EXPECT_EQ(job.membership().end, "");
  }
}

TEST(Membership, TriesAnotherSuccessorAndNeedsNoneOnceTheProgramIsDone) {
  Cluster job({.min_nodes = 2, .max_nodes = 3, .max_ranks = 4, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  job.node(0).leave = kNotice;
  job.settle(Phase::kStarting);
  const int before = job.membership().successors.at(0).incarnation;
  job.node(2).ranks[0] = {before, Phase::kLost, "SIGKILL", 137};
  job.settle(Phase::kStarting);
  EXPECT_GT(job.membership().successors.at(0).incarnation, before);
  EXPECT_EQ(job.membership().successors.at(0).tries, 1);
  job.end_rank(3, Phase::kDone);
  EXPECT_TRUE(job.settle(Phase::kStarting).successors.empty());
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1, 1}));
}

TEST(Membership, GoesOnWithFewerRanksWhenANodeLeavesAndDoesNotUseItAgain) {
  Cluster job({.min_nodes = 2, .max_nodes = 3, .min_ranks = 4, .max_ranks = 6});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  job.node(1).leave = kNotice;
  EXPECT_EQ(job.settle().end, "");
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 2, 2}));
}

TEST(Membership, EndsWhenItCannotGoOnWithoutTheNodesThatLeave) {
  const MembershipPolicy policy{.min_nodes = 2, .max_nodes = 3, .min_ranks = 2, .max_ranks = 3};
  const auto end_with = [&](const std::set<int>& leaving, bool holds_store) {
    Cluster job(policy);
    for (int node = 0; node < 3; ++node) job.join(node, 1);
    job.settle();
    for (const int node : leaving) job.node(node).leave = kNotice;
    job.node(2).holds_store = holds_store;
    job.settle();
    EXPECT_EQ(job.membership().is_stopped(), !job.membership().end.empty());
    return job.membership().end;
  };
  EXPECT_EQ(end_with({2}, false), "");
  EXPECT_EQ(end_with({0, 1}, false), "stopped by a notice, on node 0");
  EXPECT_EQ(end_with({2}, true), "stopped by a notice, on node 0");
}

// Node 1 is lost while the successors load: the ranks that leave have the only state.
TEST(Membership, EndsWithACheckpointIfOnlyRanksThatLeaveHaveTheState) {
  Cluster job(
      {.min_nodes = 2, .max_nodes = 3, .min_ranks = 1, .max_ranks = 2, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 1);
  job.settle();
  job.node(0).leave = kNotice;
  job.settle(Phase::kStarting);
  EXPECT_EQ(job.membership().end, "");
  job.lose(1);
  job.settle(Phase::kWaiting);
  EXPECT_EQ(job.membership().attempt, 0) << "a second group would train beside the first";
  EXPECT_EQ(job.membership().end, "stopped by a notice, on node 0");
}

TEST(Membership, LetsOneNodeLeaveAfterAnother) {
  Cluster job({.min_nodes = 1, .max_nodes = 4, .min_ranks = 1, .max_ranks = 3});
  for (int node = 0; node < 4; ++node) job.join(node, 1);
  job.settle();
  job.node(0).leave = job.node(1).leave = kNotice;
  Membership& membership = job.membership();
  membership.ranks.at(2).replaces = true;  // a recovery is under way
  job.end_rank(2, Phase::kStarting);
  const MembershipPolicy policy{.min_nodes = 1, .max_nodes = 4, .min_ranks = 1, .max_ranks = 3};
  EXPECT_EQ(next_membership(membership, job.reports(), policy, false).leaving, std::set<int>{});
  membership.ranks.at(2).replaces = false;
  EXPECT_EQ(next_membership(membership, job.reports(), policy, false).leaving, std::set<int>{0});
  EXPECT_EQ(job.settle().leaving, std::set<int>{0});
  job.lose(0);  // its launcher has ended
  EXPECT_EQ(job.settle().leaving, std::set<int>{1});
  EXPECT_EQ(membership.end, "");
}

TEST(Membership, DoesNotUseANodeThatLeavesBeforeTheRanksHaveTheirPlaces) {
  Cluster job({.min_nodes = 1, .max_nodes = 2, .max_ranks = 2, .max_replacements = 9});
  job.join(0, 1);
  job.node(0).leave = kNotice;
  EXPECT_FALSE(job.settle(Phase::kMember, true).formed);
  job.join(1, 1);
  EXPECT_TRUE(job.settle(Phase::kMember, true).formed);
  EXPECT_EQ(job.places(), std::vector<int>{1});
}

// A mesh with tp = 2, say.
TEST(Membership, StopsIfTheMeshCannotUseEnoughRanksWithoutTheNodeThatLeaves) {
  for (const int multiple : {1, 2, 4}) {
    Cluster job({.min_nodes = 2, .max_nodes = 4, .min_ranks = 2, .max_ranks = 4});
    for (int node = 0; node < 4; ++node) job.join(node, 1);
    job.node(0).usable = {.multiple = multiple};
    job.settle();
    job.node(3).leave = kNotice;
    const Membership& membership = job.settle();
    EXPECT_EQ(membership.is_stopped(), multiple == 4) << membership.end;
    const std::vector<int> places = multiple == 1 ? std::vector{0, 1, 2} : std::vector{0, 1};
    if (multiple == 4) continue;
    EXPECT_EQ(job.places(), places);
  }
}

TEST(Membership, TellsTheRanksOnlyNumbersThatTheMeshCanUse) {
  Cluster job({.min_nodes = 2, .max_nodes = 5, .min_ranks = 2, .max_ranks = 5});
  for (int node = 0; node < 4; ++node) job.join(node, 1);
  job.node(0).usable = {.multiple = 2};
  job.settle(Phase::kMember, true);
  job.lose(1);
  EXPECT_EQ(job.settle().announcement.ranks, 2);
  EXPECT_EQ(job.places(), (std::vector<int>{0, 2})) << "the third rank has left";
  // Its place is free, and a node comes: two more ranks make four.
  job.join(5, 1);
  EXPECT_EQ(job.settle(Phase::kWaiting).announcement.ranks, 4);
  EXPECT_EQ(job.settle().ranks.size(), 4U);
  // One more node is of no use.
  job.join(6, 1);
  EXPECT_EQ(job.settle().ranks.size(), 4U);
}

// A rank alone would wait for another one, which cannot come.
TEST(Membership, AddsNoRanksThatTheMeshCannotUseSinceALostOneCannotBeReplaced) {
  Cluster job({.min_nodes = 1, .max_nodes = 1, .min_ranks = 2, .max_ranks = 4});
  job.join(0, 4);
  job.node(0).usable = {.multiple = 2};
  job.settle();
  job.end_rank(1, Phase::kLost, 137);
  EXPECT_EQ(job.settle(Phase::kWaiting).ranks.size(), 2U);
  EXPECT_EQ(job.membership().gone, std::set<int>{1});
  job.node(0).wanted = {.serial = 1, .ranks = 4};
  EXPECT_EQ(job.settle(Phase::kWaiting).ranks.size(), 4U);
}

}  // namespace
}  // namespace weft::launch
