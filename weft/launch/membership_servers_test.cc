// Which node of a job runs which parameter server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/launch/internal/orders.h"
#include "weft/launch/testing/cluster.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_nodes::Cluster;

MembershipPolicy policy_with(int servers, int min_nodes, int max_nodes, bool backup = true) {
  return {.min_nodes = min_nodes,
          .max_nodes = max_nodes,
          .min_ranks = 1,
          .max_ranks = max_nodes,
          .max_replacements = 10,
          .servers = servers,
          .server_backup = backup};
}

std::vector<int> nodes_of(const Membership& membership) {
  std::vector<int> nodes;
  for (const auto& [server, node] : membership.servers) nodes.push_back(node);
  return nodes;
}

// All servers have copied their shards.
void replicate(Cluster& job) {
  for (const NodeReport& report : job.reports()) job.node(report.node).replicated.clear();
  for (const auto& [server, node] : job.membership().servers)
    job.node(node).replicated.insert(server);
}

TEST(ServerPlaces, PutNeighborsOnDifferentNodes) {
  for (const int nodes : {2, 3, 4}) {
    Cluster job(policy_with(nodes == 3 ? 6 : 4, nodes, nodes));
    for (int node = 0; node < nodes; ++node) job.join(node, 1);
    const auto& servers = job.settle().servers;
    ASSERT_EQ(servers.size(), nodes == 3 ? 6U : 4U);
    for (const auto& [server, node] : servers)
      EXPECT_NE(servers.at((server + 1) % static_cast<int>(servers.size())), node) << nodes;
  }
}

TEST(ServerPlaces, SpreadServersWithoutCopies) {
  Cluster job(policy_with(3, 3, 3, false));
  for (int node = 0; node < 3; ++node) job.join(node, 1);
  EXPECT_THAT(nodes_of(job.settle()), ElementsAre(0, 1, 2));
}

TEST(ServerPlaces, AreOnOneNodeWhereThereIsOne) {
  Cluster job(policy_with(2, 1, 2));
  job.join(0, 1);
  EXPECT_THAT(nodes_of(job.settle(RankPhase::kMember, true)), ElementsAre(0, 0));
}

TEST(ServerPlaces, OfALostNodeMoveAndComeApartWhenAnotherNodeComes) {
  Cluster job(policy_with(2, 1, 2));
  job.join(0, 2);
  job.join(1, 2);
  EXPECT_THAT(nodes_of(job.settle()), ElementsAre(0, 1));
  replicate(job);
  job.lose(1);
  EXPECT_THAT(nodes_of(job.settle()), ElementsAre(0, 0));
  job.join(2, 2);
  job.settle();
  EXPECT_THAT(nodes_of(job.membership()), ElementsAre(0, 0)) << "a shard has one copy";
  replicate(job);
  EXPECT_THAT(nodes_of(job.settle()), ElementsAre(2, 0));
  EXPECT_THAT(job.membership().notes.rbegin()->second,
              HasSubstr("server 0 of the parameter server moves from node 0 to node 2"));
  replicate(job);
  const Membership before = job.membership();
  EXPECT_EQ(job.settle().servers, before.servers);
}

TEST(ServerPlaces, OfANodeThatLeavesMoveUnlessAShardWouldBeLost) {
  Cluster job(policy_with(2, 1, 2));
  job.join(0, 2);
  job.join(1, 2);
  job.settle();
  replicate(job);
  job.node(1).leave = {"a notice", 143, 1000};
  EXPECT_THAT(nodes_of(job.settle()), ElementsAre(0, 0));
  EXPECT_EQ(job.membership().end, "");

  Cluster alone(policy_with(1, 1, 2));
  alone.join(0, 2);
  alone.join(1, 2);
  alone.settle();
  alone.node(0).leave = {"a notice", 143, 1000};
  EXPECT_THAT(alone.settle().end, HasSubstr("stopped by a notice"));
}

TEST(ServerPlaces, EndTheJobWhenValuesAreLost) {
  Cluster job(policy_with(2, 2, 2));
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  job.node(1).servers_lost = "both copies of shard 0 of the parameter server are lost";
  EXPECT_EQ(job.settle().end, "both copies of shard 0 of the parameter server are lost (node 1)");
  EXPECT_EQ(job.membership().end_code, exit_code(Errc::kPeerLost));
}

TEST(ServerPlaces, AreInTheOrdersOfTheirNodeAndSurviveTheirText) {
  Cluster job(policy_with(4, 2, 2));
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  replicate(job);
  const auto orders = internal::orders_for(1, job.membership(), job.reports());
  EXPECT_EQ(orders.membership.servers, (std::map<int, int>{{1, 1}, {3, 1}}));
  EXPECT_EQ(internal::orders_of(to_text(orders)), orders);
  EXPECT_EQ(node_report_of(to_text(job.node(1))), job.node(1));
  EXPECT_THAT(to_text(policy_with(2, 1, 2, false)), HasSubstr("--servers 2 --no-server-backup"));
}

}  // namespace
}  // namespace weft::launch
