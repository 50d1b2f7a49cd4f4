#include "weft/launch/membership.h"

#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"

namespace weft::launch {
namespace {

using Phase = RankPhase;

// Nodes that follow the plan at once.
class Cluster {
 public:
  explicit Cluster(MembershipPolicy policy) : policy_(policy) {}

  void join(int node, int slots) { nodes_[node] = {.node = node, .slots = slots}; }
  void lose(int node) { nodes_.erase(node); }
  NodeReport& node(int number) { return nodes_.at(number); }

  // Makes plans until nothing changes. Each node starts the ranks that it is given, and they reach
  // `phase`.
  const JobPlan& settle(Phase phase = Phase::kMember, bool last_call = false) {
    for (int round = 0; round < 20; ++round) {
      const JobPlan before = plan_;
      plan_ = next_plan(plan_, reports(), policy_, last_call);
      follow(phase);
      if (plan_ == before && round > 1) return plan_;
    }
    ADD_FAILURE() << "the plan never settles: " << to_text(plan_);
    return plan_;
  }
  std::vector<int> places() const {
    std::vector<int> nodes;
    for (const auto& [rank, place] : plan_.ranks) nodes.push_back(place.node);
    return nodes;
  }
  JobPlan& plan() { return plan_; }
  std::vector<NodeReport> reports() const {
    std::vector<NodeReport> all;
    for (const auto& [number, node] : nodes_) all.push_back(node);
    return all;
  }

 private:
  void follow(Phase phase) {
    for (auto& [number, node] : nodes_) {
      std::map<int, RankReport> ranks;
      for (const auto& [rank, place] : plan_.ranks) {
        if (place.node != number) continue;
        const auto known = node.ranks.find(rank);
        const bool same =
            known != node.ranks.end() && known->second.incarnation == place.incarnation;
        const bool stays = same && known->second.phase >= Phase::kMember;
        ranks[rank] = stays ? known->second : RankReport{place.incarnation, phase};
        if (plan_.announcement.leaving.contains(rank)) ranks[rank].phase = Phase::kLeft;
      }
      node.ranks = ranks;
    }
  }

  const MembershipPolicy policy_;
  std::map<int, NodeReport> nodes_;
  JobPlan plan_;
};

TEST(Membership, WaitsForTheLeastNodesAndThenForMoreUntilTheLastCall) {
  Cluster job({.min_nodes = 2, .max_nodes = 3});
  job.join(0, 2);
  EXPECT_FALSE(job.settle(Phase::kMember, true).formed);
  job.join(1, 2);
  EXPECT_FALSE(job.settle().formed);
  EXPECT_TRUE(job.settle(Phase::kMember, true).formed);
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1, 1}));
}

TEST(Membership, FormsAtOnceWhenAllNodesAreThere) {
  Cluster job({.min_nodes = 1, .max_nodes = 2});
  job.join(0, 1);
  job.join(1, 3);
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 1, 1, 1}));
}

TEST(Membership, GoesOnWithoutTheRanksOfALostNodeWhileEnoughAreLeft) {
  Cluster job({.min_nodes = 3, .max_nodes = 3, .min_ranks = 3});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  job.lose(0);
  EXPECT_EQ(job.settle().gone, (std::set<int>{0, 1}));
  EXPECT_EQ(job.places(), (std::vector<int>{1, 1, 2, 2}));
  EXPECT_EQ(job.plan().end, "");
  job.lose(1);
  EXPECT_NE(job.settle().end.find("fewer than 3 ranks are left"), std::string::npos);
}

TEST(Membership, EndsWhenALostNodeCannotBeReplaced) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .max_replacements = 9});
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  job.lose(1);
  EXPECT_EQ(job.settle().end, "rank 1 of node 1 is lost and cannot be replaced");
}

TEST(Membership, ReplacesTheRanksOfALostNodeOnASpareOne) {
  Cluster job({.min_nodes = 3, .max_nodes = 3, .max_ranks = 4, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1, 1}));  // node 2 is a spare
  job.lose(0);
  // The others wait for ranks 0 and 1, which nobody needs to announce.
  const JobPlan replaced = job.settle(Phase::kStarting);
  EXPECT_EQ(job.places(), (std::vector<int>{2, 2, 1, 1}));
  EXPECT_TRUE(replaced.ranks.at(0).replaces);
  EXPECT_EQ(replaced.ranks.at(0).incarnation, 1);
  EXPECT_EQ(replaced.announcement.number, 0);
  EXPECT_EQ(replaced.replacements, 2);
  for (auto& [rank, report] : job.node(2).ranks) report.phase = Phase::kMember;
  EXPECT_FALSE(job.settle().ranks.at(0).replaces);
}

TEST(Membership, AnnouncesAdditionalRanksOnceAllOfThemWait) {
  Cluster job({.min_nodes = 1, .max_nodes = 3});
  job.join(0, 2);
  job.settle(Phase::kMember, true);
  job.join(1, 1);
  job.join(2, 1);
  EXPECT_EQ(job.settle(Phase::kStarting).announcement.number, 0);
  job.node(1).ranks.begin()->second.phase = Phase::kWaiting;
  EXPECT_EQ(next_plan(job.plan(), job.reports(), {.max_nodes = 3}, false).announcement.number, 0);
  job.node(2).ranks.begin()->second.phase = Phase::kWaiting;
  const auto told = next_plan(job.plan(), job.reports(), {.max_nodes = 3}, false).announcement;
  EXPECT_EQ(told, (Announcement{1, 4, {2, 3}, {}}));
  // Once they have joined, the next growth is another announcement.
  job.settle(Phase::kMember);
  EXPECT_EQ(job.plan().announcement, (Announcement{.number = 1}));
}

TEST(Membership, DoesNotMissAnAdditionalRankThatIsLostBeforeItHasJoined) {
  Cluster job({.min_nodes = 1, .max_nodes = 2});
  job.join(0, 2);
  job.settle(Phase::kMember, true);
  job.join(1, 1);
  job.settle(Phase::kStarting);
  job.lose(1);
  const JobPlan plan = job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0}));
  EXPECT_EQ(plan.gone, std::set<int>{2});
  EXPECT_EQ(plan.end, "");
}

TEST(Membership, MovesRanksAwayFromANodeThatFailsAgainAndAgain) {
  const MembershipPolicy policy{
      .min_nodes = 2, .max_nodes = 2, .max_ranks = 2, .max_replacements = 9};
  Cluster job(policy);
  job.join(0, 2);
  job.join(1, 2);
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0}));
  job.node(0).failures = kMostFailures;
  job.settle();
  EXPECT_EQ(job.plan().aside, std::set<int>{0});
  EXPECT_EQ(job.places(), (std::vector<int>{1, 1}));
  // It is used again ten minutes later. The last usable node is never set aside.
  job.node(1).failures = kMostFailures;
  EXPECT_EQ(job.settle().aside, std::set<int>{0});
  job.node(0).failures = 0;
  EXPECT_EQ(job.settle().aside, std::set<int>{1});
}

TEST(Membership, LetsTheRanksOfANodeLeaveThatIsAboutToEnd) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .min_ranks = 1});
  job.join(0, 2);
  job.join(1, 1);
  job.settle();
  job.node(0).drains = true;
  job.settle();
  EXPECT_EQ(job.places(), std::vector<int>{1});
  EXPECT_EQ(job.plan().announcement.number, 1);
  EXPECT_EQ(job.plan().end, "");
}

TEST(Membership, ChangesToTheNumberOfRanksThatWasAskedFor) {
  Cluster job({.min_nodes = 2, .max_nodes = 2});
  job.join(0, 2);
  job.join(1, 2);
  job.settle();
  job.plan().wanted = 3;
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1}));
  job.plan().wanted = 0;
  job.settle(Phase::kWaiting);
  EXPECT_EQ(job.plan().announcement, (Announcement{2, 4, {3}, {}}));
}

TEST(Membership, ChangesNothingMoreOnceARankHasEndedItsProgram) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .max_replacements = 9});
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  job.node(0).ranks.at(0).phase = Phase::kDone;
  job.lose(1);
  const JobPlan before = job.plan();
  EXPECT_EQ(job.settle(), before);
}

TEST(Membership, SurvivesItsText) {
  Cluster job({.min_nodes = 1, .max_nodes = 3, .min_ranks = 1});
  for (int node = 0; node < 3; ++node) job.join(node, 1 + node);
  job.settle();
  job.lose(1);
  const JobPlan plan = job.settle();
  EXPECT_EQ(job_plan_of(to_text(plan)), plan);
  for (const NodeReport& report : job.reports()) EXPECT_EQ(node_report_of(to_text(report)), report);
  for (const char* text : {"", "[]", "{}", R"({"node": "x"})"}) {
    expect_refused([&] { job_plan_of(text); }, Errc::kCorrupt, "unreadable plan of the job");
    expect_refused([&] { node_report_of(text); }, Errc::kCorrupt, "unreadable report of a node");
  }
}

}  // namespace
}  // namespace weft::launch
