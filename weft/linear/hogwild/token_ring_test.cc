#include "weft/linear/hogwild/token_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <numeric>
#include <vector>

#include "weft/linear/hogwild/internal/cluster_member.h"
#include "weft/linear/hogwild/testing/thread_ring.h"

namespace weft::linear {
namespace token_ring_test {

TEST(TokenRing, MixesByTheRootsOfThePaper) {
  // β = (sqrt(5) - 1) / 2 solves β² + β = 1; 0.6823278 solves β³ + β = 1.
  EXPECT_NEAR(mixing(2).beta, 0.6180339887, 1e-6);
  EXPECT_NEAR(mixing(2).lambda, 1 - 0.6180339887, 1e-6);
  EXPECT_NEAR(mixing(3).beta, 0.6823278, 1e-6);
  EXPECT_NEAR(mixing(3).lambda, 1 - 0.6823278 * 0.6823278, 1e-6);
  EXPECT_NEAR(std::pow(mixing(16).beta, 16) + mixing(16).beta, 1, 1e-5);
}

TEST(TokenRing, AnExchangeIsThatOfThePaper) {
  std::vector<float> w{3}, snapshot{1}, next{10};
  exchange(w, snapshot, next, {.beta = 0.75F, .lambda = 0.5F});
  EXPECT_EQ(next[0], 10 + 0.75F * 2);
  EXPECT_EQ(w[0], 0.5F * 10 + 0.5F * 3 + 0.25F * 2);
  EXPECT_EQ(snapshot[0], w[0]);
}

TEST(TokenRing, CopiesFollowTheSumOfAllChanges) {
  for (const int clusters : {2, 3, 4}) {
    std::vector<std::vector<float>> w(static_cast<std::size_t>(clusters), {0}), s = w;
    const auto turn = [&] {  // each cluster changes its copy by 1
      for (std::size_t c = 0; c < w.size(); ++c) {
        for (auto& copy : w) copy[0] += 1.0F / static_cast<float>(clusters);
        exchange(w[c], s[c], w[(c + 1) % w.size()], mixing(clusters));
      }
    };
    for (int i = 0; i < 50; ++i) turn();
    const float before = w[0][0];
    for (int i = 0; i < 50; ++i) turn();
    const double growth = (w[0][0] - before) / (50.0 * clusters);
    EXPECT_GT(growth, 0.85) << clusters;
    EXPECT_LT(growth, 1.2) << clusters;
    for (const auto& copy : w) EXPECT_NEAR(copy[0], w[0][0], 0.05 * w[0][0]);
  }
}

// Three clusters in memory. Of those that have not ended, only the one whose turn it is, or the
// nearest before it, exchanges.
TEST(TokenRing, AClusterTakesTheTurnsOfThoseAfterItThatHaveEnded) {
  constexpr std::int64_t kRows = 64;
  std::vector<std::uint64_t> memory(internal::SharedWeights::bytes(1, 3) / 8 + 1);
  const internal::SharedWeights shared(reinterpret_cast<std::byte*>(memory.data()), 1, 3);
  std::vector<internal::ClusterMember> members;
  for (int cluster = 0; cluster < 3; ++cluster) members.emplace_back(shared, cluster, kRows);
  std::vector<std::vector<float>> w(3, {0}), s = w;
  // Each cluster has a turn, which takers[cluster] takes.
  const auto circle = [&](const std::array<std::size_t, 3>& takers) {
    for (std::size_t holder = 0; holder < 3; ++holder) {
      ASSERT_EQ(shared.turn().load(), holder);
      for (int c = 0; c < 3; ++c)
        w[static_cast<std::size_t>(c)][0] = shared.weights(c)[0] += static_cast<float>(1 + c);
      for (const std::size_t other : takers) {
        if (other != takers[holder]) members[other].poll(kRows);
      }
      members[takers[holder]].poll(kRows);
      exchange(w[holder], s[holder], w[(holder + 1) % 3], mixing(3));
      for (int c = 0; c < 3; ++c)
        EXPECT_EQ(shared.weights(c)[0], w[static_cast<std::size_t>(c)][0]) << holder << " " << c;
      members[takers[holder]].poll(kRows);
    }
  };
  circle({0, 1, 2});
  shared.ended(0).store(1);
  circle({2, 1, 2});
  shared.ended(2).store(1);
  circle({1, 1, 1});
}

// Hosts that poll in turn: each message arrives `delay` polls after it was sent.
class HostsInTurn {
 public:
  HostsInTurn(int hosts, std::size_t weights, std::int64_t rows) : ring_(hosts) {
    for (int host = 0; host < hosts; ++host) {
      weights_.emplace_back(weights, 0.0F);
      messages_.push_back(std::make_unique<ThreadRing>(ring_, host));
    }
    for (int host = 0; host < hosts; ++host) {
      const auto at = static_cast<std::size_t>(host);
      members_.emplace_back(*messages_[at], weights_[at], host, hosts, rows);
    }
  }

  void visit(std::int64_t rows, float change) {
    for (std::size_t host = 0; host < members_.size(); ++host) {
      for (float& w : weights_[host]) w += change;
      members_[host].poll(rows);
    }
  }
  void finish() {
    std::vector<std::jthread> threads;
    for (auto& member : members_) threads.emplace_back([&member] { member.finish(); });
  }
  const std::vector<std::vector<float>>& weights() const { return weights_; }
  bool empty() { return ring_.empty(); }

 private:
  ThreadRing::Shared ring_;
  std::vector<std::vector<float>> weights_;
  std::vector<std::unique_ptr<ThreadRing>> messages_;
  std::vector<RingMember> members_;
};

TEST(TokenRing, HostsExchangeByMessagesLikeClustersInMemory) {
  HostsInTurn hosts(2, 3, 1);
  std::vector<float> a(3), b(3), sa(3), sb(3);
  for (int i = 0; i < 400; ++i) hosts.visit(1, 0.01F);
  hosts.finish();
  for (int i = 0; i < 400; ++i) {
    for (std::size_t j = 0; j < 3; ++j) a[j] += 0.01F, b[j] += 0.01F;
    if (i % 8 == 3) exchange(a, sa, b, mixing(2));
    if (i % 8 == 7) exchange(b, sb, a, mixing(2));
  }
  // Both count the changes of both hosts: about 800 x 0.01.
  EXPECT_NEAR(hosts.weights()[0][0], a[0], 0.1 * a[0]);
  EXPECT_NEAR(hosts.weights()[1][2], hosts.weights()[0][2], 0.1 * a[0]);
}

TEST(TokenRing, AHostThatFinishesLeavesNoMessageBehindWhereverTheTokenIs) {
  for (const int hosts : {2, 3, 5}) {
    for (int polls = 0; polls < 60; ++polls) {
      HostsInTurn all(hosts, 2, 3);
      for (int i = 0; i < polls; ++i) all.visit(1, 1);
      all.finish();
      EXPECT_TRUE(all.empty()) << hosts << " " << polls;
    }
  }
}

}  // namespace token_ring_test
}  // namespace weft::linear
