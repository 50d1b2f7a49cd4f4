#include "weft/launch/internal/orders.h"

#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"
#include "weft/launch/internal/agent_messages.h"
#include "weft/launch/internal/outbox.h"

namespace weft::launch {
namespace {

using internal::NodeOrders;
using internal::orders_for;

JobPlan plan_of_two_nodes() {
  JobPlan plan;
  plan.formed = true;
  plan.ranks[0] = {.node = 0, .incarnation = 1, .first = true, .member = true};
  plan.ranks[2] = {.node = 1, .incarnation = 4};
  plan.announcement = {1, 2, {2}};
  plan.notes[3] = "rank 1 is lost; \"quoted\"";
  return plan;
}

TEST(Orders, HaveTheRanksOfOneNodeAndTheCountsOfTheJob) {
  const NodeOrders orders = orders_for(1, plan_of_two_nodes(), {});
  EXPECT_EQ(orders.plan.ranks.size(), 1U);
  EXPECT_EQ(orders.plan.ranks.at(2).incarnation, 4);
  EXPECT_EQ(orders.world, 3);
  EXPECT_EQ(orders.nodes, 2);
  EXPECT_EQ(orders.members, 1);
  EXPECT_FALSE(orders.is_over());
}

TEST(Orders, ComeTooLateOnlyForANodeThatHasNeverHadSome) {
  JobPlan plan = plan_of_two_nodes();
  EXPECT_FALSE(internal::comes_too_late(plan, false));
  plan.done = true;
  EXPECT_TRUE(internal::comes_too_late(plan, false));
  EXPECT_FALSE(internal::comes_too_late(plan, true)) << "it was fenced, and comes back";
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
  JobPlan plan = plan_of_two_nodes();
  plan.leaving = {1};
  plan.successors[2] = {.node = 0, .incarnation = 5};
  EXPECT_EQ(orders_for(0, plan, {}).plan.ranks.at(2).incarnation, 5);
  EXPECT_EQ(orders_for(1, plan, {}).plan.ranks.at(2).incarnation, 4);
  EXPECT_EQ(orders_for(0, plan, {}).members, 1);
}

TEST(Orders, SayWhenAllNodesKnowThatTheJobIsOver) {
  JobPlan plan = plan_of_two_nodes();
  const NodeReport stays{.node = 0}, left{.node = 1, .left = true};
  EXPECT_FALSE(orders_for(1, plan, {left}).all_left);
  plan.done = true;
  EXPECT_FALSE(orders_for(1, plan, {stays, left}).all_left);
  EXPECT_TRUE(orders_for(1, plan, {left}).all_left);
  const NodeReport saved{.node = 0, .saved = {2, "ckpt/step-7"}, .left = true};
  EXPECT_FALSE(orders_for(1, plan, {saved, left}).all_left) << "the plan lacks the checkpoint";
  plan.saved = saved.saved;
  EXPECT_TRUE(orders_for(1, plan, {saved, left}).all_left);
  NodeReport one = left, other = saved;
  one.knows_all_left = true;
  EXPECT_FALSE(orders_for(1, plan, {one, other}).all_know);
  other.knows_all_left = true;
  EXPECT_TRUE(orders_for(1, plan, {one, other}).all_know);
  other.left = false;
  EXPECT_FALSE(orders_for(1, plan, {one, other}).all_know);
}

TEST(Orders, RanksAreLostWithTheirNodeOnceThePlanHasGivenItUp) {
  const JobPlan before = plan_of_two_nodes();
  const std::vector<NodeReport> first{{.node = 0}}, both{{.node = 0}, {.node = 1}};
  const auto lost = [&](const JobPlan& plan, const std::vector<NodeReport>& nodes) {
    return internal::lost_with_nodes(before, plan, nodes);
  };
  EXPECT_TRUE(lost(before, first).empty()) << "the plan has not changed yet";
  JobPlan plan = before;
  plan.ranks.erase(2);
  EXPECT_EQ(lost(plan, first), std::set{2});
  EXPECT_TRUE(lost(plan, both).empty()) << "its process ended, which closes its connections";
  plan = before;
  plan.ranks[2] = {.node = 0, .incarnation = 5, .replaces = true};
  EXPECT_EQ(lost(plan, first), std::set{2});
  plan.attempt = 1;
  EXPECT_TRUE(lost(plan, first).empty()) << "all ranks have started again";
}

TEST(Orders, SurviveTheirText) {
  NodeOrders orders = orders_for(0, plan_of_two_nodes(), {});
  EXPECT_EQ(internal::orders_of(to_text(orders)), orders);
  for (const char* text : {"", "[]", "{}", R"({"node": 1, "plan": 2})"})
    expect_refused([&] { internal::orders_of(text); }, Errc::kCorrupt, "unreadable");
}

}  // namespace
}  // namespace weft::launch
