#include "weft/launch/internal/orders.h"

#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"
#include "weft/launch/internal/agent_messages.h"
#include "weft/launch/internal/outbox.h"

namespace weft::launch {
namespace {

using internal::NodeOrders;
using internal::orders_for;

Membership membership_of_two_nodes() {
  Membership membership;
  membership.formed = true;
  membership.ranks[0] = {.node = 0, .incarnation = 1, .first = true, .member = true};
  membership.ranks[2] = {.node = 1, .incarnation = 4};
  membership.announcement = {1, 2, {2}};
  membership.notes[3] = "rank 1 is lost; \"quoted\"";
  return membership;
}

TEST(Orders, HaveTheRanksOfOneNodeAndTheCountsOfTheJob) {
  const NodeOrders orders = orders_for(1, membership_of_two_nodes(), {});
  EXPECT_EQ(orders.membership.ranks.size(), 1U);
  EXPECT_EQ(orders.membership.ranks.at(2).incarnation, 4);
  EXPECT_EQ(orders.world, 3);
  EXPECT_EQ(orders.nodes, 2);
  EXPECT_EQ(orders.members, 1);
  EXPECT_EQ(orders.elsewhere, 1);
  EXPECT_FALSE(orders.is_over());
}

TEST(Orders, ComeTooLateOnlyForANodeThatHasNeverHadSome) {
  Membership membership = membership_of_two_nodes();
  EXPECT_FALSE(internal::comes_too_late(membership, false));
  membership.done = true;
  EXPECT_TRUE(internal::comes_too_late(membership, false));
  EXPECT_FALSE(internal::comes_too_late(membership, true)) << "it was fenced, and comes back";
}

// All nodes see a change at once, and each offer is copied to all of them.
TEST(Orders, AreOfferedByTheNodeWithTheLowestNumberFirst) {
  std::vector<NodeReport> nodes(3);
  nodes[0].node = 9;
  nodes[1].node = 2;
  nodes[2].node = 5;
  EXPECT_EQ(internal::pause_before_offer(2, nodes), std::chrono::milliseconds(0));
  EXPECT_EQ(internal::pause_before_offer(5, nodes), std::chrono::milliseconds(20));
  EXPECT_EQ(internal::pause_before_offer(9, nodes), std::chrono::milliseconds(40));
}

TEST(Outbox, KeepsWhatAFullLinkDoesNotTakeAndSendsItInOrder) {
  auto [agent, launcher] = rank_link::Link::make();
  while (agent.tell("filling", std::string(1000, '.'))) {
  }
  internal::Outbox outbox(agent);
  outbox.tell(rank_link::RanksLost{{{1, 2}}});
  outbox.tell(internal::Over{203, "why"});
  EXPECT_FALSE(outbox.flush());
  const auto next = [&launcher = launcher] {
    auto message = launcher.next();
    while (message && message->verb == "filling") message = launcher.next();
    return message;
  };
  EXPECT_EQ(next(), std::nullopt);
  EXPECT_TRUE(outbox.flush());
  EXPECT_EQ(next(), (rank_link::Message{"lost", "1 2"}));
  EXPECT_EQ(next(), (rank_link::Message{"over", "203 why"}));
}

TEST(Orders, HaveTheProcessesThatWillReplaceRanksOfNodesThatLeave) {
  Membership membership = membership_of_two_nodes();
  membership.leaving = {1};
  membership.successors[2] = {.node = 0, .incarnation = 5};
  EXPECT_EQ(orders_for(0, membership, {}).membership.ranks.at(2).incarnation, 5);
  EXPECT_EQ(orders_for(1, membership, {}).membership.ranks.at(2).incarnation, 4);
  EXPECT_EQ(orders_for(0, membership, {}).members, 1);
}

TEST(Orders, SayWhenAllNodesKnowThatTheJobIsOver) {
  Membership membership = membership_of_two_nodes();
  const NodeReport stays{.node = 0}, left{.node = 1, .left = true};
  EXPECT_FALSE(orders_for(1, membership, {left}).all_left);
  membership.done = true;
  EXPECT_FALSE(orders_for(1, membership, {stays, left}).all_left);
  EXPECT_TRUE(orders_for(1, membership, {left}).all_left);
  const NodeReport saved{.node = 0, .saved = {2, "ckpt/step-7"}, .left = true};
  EXPECT_FALSE(orders_for(1, membership, {saved, left}).all_left)
      << "the plan lacks the checkpoint";
  membership.saved = saved.saved;
  EXPECT_TRUE(orders_for(1, membership, {saved, left}).all_left);
  NodeReport one = left, other = saved;
  one.knows_all_left = true;
  EXPECT_FALSE(orders_for(1, membership, {one, other}).all_know);
  other.knows_all_left = true;
  EXPECT_TRUE(orders_for(1, membership, {one, other}).all_know);
  other.left = false;
  EXPECT_FALSE(orders_for(1, membership, {one, other}).all_know);
}

TEST(Orders, SayWhetherARankOfTheGroupRunsOnAnyNode) {
  NodeReport one{.node = 0}, other{.node = 1};
  one.ranks[0] = {1, RankPhase::kFailed};
  other.ranks[2] = {4, RankPhase::kMember};
  EXPECT_TRUE(orders_for(0, membership_of_two_nodes(), {one, other}).has_members);
  other.ranks[2].phase = RankPhase::kStarting;
  EXPECT_FALSE(orders_for(0, membership_of_two_nodes(), {one, other}).has_members);
}

TEST(Orders, RanksAreLostWithTheirNodeOnceTheMembershipHasGivenItUp) {
  const Membership before = membership_of_two_nodes();
  const std::vector<NodeReport> first{{.node = 0}}, both{{.node = 0}, {.node = 1}};
  const auto lost = [&](const Membership& membership, const std::vector<NodeReport>& nodes) {
    return internal::lost_with_nodes(before, membership, nodes);
  };
  EXPECT_TRUE(lost(before, first).empty()) << "the plan has not changed yet";
  Membership membership = before;
  membership.ranks.erase(2);
  EXPECT_EQ(lost(membership, first), std::set{2});
  EXPECT_TRUE(lost(membership, both).empty()) << "its process ended, which closes its connections";
  membership = before;
  membership.ranks[2] = {.node = 0, .incarnation = 5, .replaces = true};
  EXPECT_EQ(lost(membership, first), std::set{2});
  membership.attempt = 1;
  EXPECT_TRUE(lost(membership, first).empty()) << "all ranks have started again";
}

TEST(Orders, SurviveTheirText) {
  NodeOrders orders = orders_for(0, membership_of_two_nodes(), {});
  EXPECT_EQ(internal::orders_of(to_text(orders)), orders);
  orders.all_left = orders.all_know = orders.has_members = true;
  EXPECT_EQ(internal::orders_of(to_text(orders)), orders);
  for (const char* text : {"", "[]", "{}", R"({"node": 1, "plan": 2})"})
    expect_refused([&] { internal::orders_of(text); }, Errc::kCorrupt, "unreadable");
}

}  // namespace
}  // namespace weft::launch
