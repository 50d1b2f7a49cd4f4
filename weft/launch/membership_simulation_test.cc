// Jobs on several nodes in a simulation: agents with delays that compare and set the membership,
// nodes that are lost or cut off, agents that stop for a while, ranks that die, nodes that come
// late. Promises (testing/promises.h): one group trains, each step is done once, none is left out,
// and all launchers end. One seed again, and many:
//   WEFT_SIM_SEED=17 ctest --test-dir build/release -R launch.MembershipSimulation
//   WEFT_SIM_SEEDS=100000 ctest --test-dir build/release -R MembershipSimulationSlow.OneGroup
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>

#include "weft/launch/internal/orders.h"
#include "weft/launch/membership.h"
#include "weft/launch/testing/simulated_ranks.h"

namespace weft::launch {
namespace membership_simulation {

// One tick is 100 ms.
constexpr int kLease = 15, kAloneLimit = 100, kStarts = 20, kGrace = 50, kFarewellTicks = 30;
constexpr int kFaultsEnd = 400, kJoinLimit = 600, kLimit = 3000;

// kSilentStore: no node reaches the store for a while, and nothing else happens.
enum class Faults { kAll, kSilentStore };

struct Node {
  int number = -1, slots = 1;  // number: by the store
  bool exists = false, lost = false, ended = false, leaves = false;
  int heard = 0, paused_until = 0, cut_until = 0, changes_from = 0;
  struct Swap {
    Membership membership;
    int revision, due;
  };
  std::optional<Swap> swap;  // on its way to the store
  internal::NodeOrders orders;
  std::map<int, RankPtr> started;  // by incarnation
  int over_since = -1;
  bool runs() const { return exists && !lost && !ended; }
};

class Simulation {
 public:
  Simulation(unsigned seed, Flaw flaw, Faults faults = Faults::kAll)
      : random_(seed), flaw_(flaw), faults_(faults) {
    nodes_.resize(static_cast<std::size_t>(2 + draw(4)));
    policy_.max_nodes = static_cast<int>(nodes_.size()) - draw(2);
    policy_.min_nodes = 1 + draw(policy_.max_nodes);
    const int slots = 1 + draw(2);
    policy_.max_ranks = slots * policy_.max_nodes;
    policy_.min_ranks = draw(2) == 0 ? 0 : 1 + draw(policy_.max_ranks);
    policy_.max_replacements = draw(3) * 10;
    ranks_.emplace(policy_, flaw);
    for (Node& node : nodes_) node.slots = slots;
    for (int node = 0; node < policy_.min_nodes; ++node)
      nodes_[static_cast<std::size_t>(node)].exists = true;
  }

  std::optional<Breach> run() {
    for (now_ = 0; now_ < kLimit; ++now_) {
      if (now_ < kFaultsEnd) make_faults();
      expire();
      for (std::size_t i = 0; i < nodes_.size(); ++i) step(i);
      if (const auto breach = ranks_->step(now_, reach(), membership_)) return breach;
      const bool all_ended =
          std::none_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.runs(); });
      if (all_ended) return std::nullopt;
    }
    return Breach{Promise::kEnd, "launchers still run; the plan: " + to_text(membership_)};
  }

  int lost_ranks() const {
    return membership_.replacements + static_cast<int>(membership_.gone.size());
  }

 private:
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool chance(double p) { return std::uniform_real_distribution<>()(random_) < p; }
  bool is_cut(const Node& node) const { return node.cut_until > now_; }
  std::vector<Reach> reach() const {
    std::vector<Reach> all;
    for (const Node& node : nodes_) all.push_back({node.runs(), is_cut(node)});
    return all;
  }

  void make_faults() {
    const bool is_silent = faults_ == Faults::kSilentStore ? now_ == 250 : chance(0.0005);
    if (is_silent) {
      const int until = now_ + kLease + draw(kAloneLimit - 2 * kLease);
      for (Node& node : nodes_) node.cut_until = until + draw(kLease / 2);
    }
    for (Node& node : nodes_) {
      if (!node.exists) node.exists = chance(0.01);
      if (!node.runs() || faults_ == Faults::kSilentStore) continue;
      if (chance(0.0008)) lose(node);
      if (chance(0.0008)) node.leaves = true;
      if (chance(0.002)) node.paused_until = now_ + 1 + draw(30);
      for (auto& [incarnation, rank] : node.started) {
        if (rank->alive() && chance(0.001)) rank->phase = Phase::kLost;
      }
    }
    if (faults_ == Faults::kAll && chance(0.003)) {
      const int until = now_ + 5 + draw(2 * kAloneLimit);
      for (Node& node : nodes_) {
        if (chance(0.4)) node.cut_until = until;
      }
    }
  }
  static void lose(Node& node) {
    node.lost = true;
    end_ranks(node);
  }
  static void end_ranks(Node& node) {
    for (auto& [incarnation, rank] : node.started) {
      if (rank->alive()) rank->phase = Phase::kLost;
    }
  }

  void expire() {
    std::erase_if(leases_, [&](const auto& lease) { return lease.second < now_; });
    for (auto report = reports_.begin(); report != reports_.end();) {
      if (leases_.contains(report->first)) {
        ++report;
        continue;
      }
      silent_[report->first] = report->second;
      report = reports_.erase(report);
    }
  }

  void step(std::size_t index) {
    Node& node = nodes_[index];
    if (!node.runs()) return;
    if (node.paused_until <= now_) step_agent(index);
    if (node.runs()) step_launcher(index);
  }

  void step_agent(std::size_t index) {
    Node& node = nodes_[index];
    if (is_cut(node)) {
      if (now_ - node.heard > kAloneLimit) give_up(node);
      return;
    }
    if (now_ - node.heard > kLease) node.changes_from = now_ + kLease;
    node.heard = now_;
    if (!membership_.formed && now_ > kJoinLimit) return give_up(node);
    if (node.number < 0) {
      node.number = count_++;
      leases_[node.number] = now_ + kLease;
    } else if (!leases_.contains(node.number)) {
      node.swap.reset();
    }
    if (!leases_.contains(node.number) && !keeps_its_ranks(node)) {
      node.number = -1;
      if (flaw_ == Flaw::kIgnoresFence) return;
      node.orders = {};
      end_ranks(node);
      return;
    }
    leases_[node.number] = now_ + kLease;
    reports_[node.number] = report_of(node);
    if (node.swap && node.swap->due <= now_) {
      if (node.swap->revision == revision_) {
        membership_ = node.swap->membership;
        ++revision_;
      }
      node.swap.reset();
    }
    if (!node.swap && chance(0.7)) offer(node);
  }

  bool keeps_its_ranks(const Node& node) const {
    const Membership& told = node.orders.membership;
    return node.orders.node >= 0 && membership_.attempt == told.attempt &&
           std::all_of(told.ranks.begin(), told.ranks.end(), [&](const auto& one) {
             const auto has = [&](const std::map<int, Placement>& places) {
               const auto found = places.find(one.first);
               return found != places.end() && found->second.incarnation == one.second.incarnation;
             };
             return has(membership_.ranks) || has(membership_.successors);
           });
  }

  void give_up(Node& node) {
    node.ended = true;
    end_ranks(node);
  }

  void offer(Node& node) {
    std::vector<NodeReport> reports;
    for (const auto& [number, report] : reports_) reports.push_back(report);
    node.orders = internal::orders_for(node.number, membership_, reports);
    if (flaw_ == Flaw::kSilentNodesAreDead) {
      for (auto [number, report] : silent_) {
        if (reports_.contains(number)) continue;
        for (auto& [rank, said] : report.ranks) said = {said.incarnation, Phase::kLost, "", 137};
        report.slots = 0;
        reports.push_back(report);
      }
    }
    if (membership_.formed && now_ < node.changes_from) return;
    const Membership next = next_membership(membership_, reports, policy_, now_ > 50);
    if (!(next == membership_)) node.swap = {next, revision_, now_ + draw(4)};
  }

  NodeReport report_of(const Node& node) const {
    NodeReport report{.node = node.number, .slots = node.slots};
    bool running = false;
    for (const auto& [incarnation, rank] : node.started) {
      running = running || rank->alive();
      if (flaw_ == Flaw::kHidesLostRanks && !rank->alive()) continue;
      const auto place = node.orders.membership.ranks.find(rank->rank);
      if (place == node.orders.membership.ranks.end() || place->second.incarnation != incarnation)
        continue;
      const int code = rank->phase == Phase::kLost ? 137 : rank->phase == Phase::kFailed ? 200 : 0;
      report.ranks[rank->rank] = {incarnation, rank->phase, "", code};
    }
    if (now_ > 100) report.run = "/run";
    if (node.leaves) report.leave = {"notice", 143, 0};
    report.left = node.orders.is_over() && !running;
    report.knows_all_left = node.orders.all_left;
    return report;
  }

  // As Supervisor::drop_ranks().
  void drop_ranks(Node& node) const {
    const auto& ranks = node.orders.membership.ranks;
    for (auto& [incarnation, rank] : node.started) {
      const auto place = ranks.find(rank->rank);
      const bool stays = place != ranks.end() && place->second.incarnation == incarnation;
      const bool ends_itself = node.orders.is_over() && rank->phase >= Phase::kMember;
      if (!stays && !ends_itself && rank->alive() && flaw_ != Flaw::kIgnoresFence)
        rank->phase = Phase::kLost;
    }
  }

  void step_launcher(std::size_t index) {
    Node& node = nodes_[index];
    const internal::NodeOrders& orders = node.orders;
    if (orders.is_over()) {
      drop_ranks(node);
      if (node.over_since < 0) node.over_since = now_;
      if (!orders.membership.end.empty() && now_ - node.over_since > kGrace) end_ranks(node);
      const bool running = std::any_of(node.started.begin(), node.started.end(),
                                       [](const auto& one) { return one.second->alive(); });
      if (running) node.over_since = std::max(node.over_since, now_ - kGrace - 1);
      if (!running && (orders.all_know || now_ - node.over_since > kGrace + kFarewellTicks))
        node.ended = true;
      return;
    }
    drop_ranks(node);
    const bool running = std::any_of(node.started.begin(), node.started.end(),
                                     [](const auto& one) { return one.second->alive(); });
    if (orders.membership.leaving.contains(node.number) && !running) node.ended = true;
    for (const auto& [rank, place] : orders.membership.ranks) {
      if (node.started.contains(place.incarnation)) continue;
      node.started[place.incarnation] = ranks_->start({.rank = rank,
                                                       .incarnation = place.incarnation,
                                                       .attempt = orders.membership.attempt,
                                                       .node = index,
                                                       .first = place.first,
                                                       .ready = now_ + 1 + draw(kStarts)},
                                                      orders.world);
    }
  }

  std::mt19937 random_;
  const Flaw flaw_;
  const Faults faults_;
  MembershipPolicy policy_;
  int now_ = 0;
  std::vector<Node> nodes_;
  // The store.
  Membership membership_;
  int revision_ = 0, count_ = 0;
  std::map<int, int> leases_;  // by node number: its end
  std::map<int, NodeReport> reports_, silent_;
  std::optional<SimulatedRanks> ranks_;
};

int number_in(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : otherwise;
}

// How many seeds break each promise.
std::map<Promise, int> broken(int seeds, Flaw flaw) {
  const int only = number_in("WEFT_SIM_SEED", 0);
  const int first = only > 0 ? only : 1, count = only > 0 ? 1 : seeds;
  std::map<Promise, int> breaches;
  for (int seed = first; seed < first + count; ++seed) {
    const auto breach = Simulation(static_cast<unsigned>(seed), flaw).run();
    if (!breach) continue;
    const int before = breaches[breach->promise]++;
    if (flaw == Flaw::kNone && before < 3) ADD_FAILURE() << "seed " << seed << ": " << breach->what;
  }
  return breaches;
}

TEST(MembershipSimulation, OneGroupTrainsEachStepOnceAndAllLaunchersEnd) {
  EXPECT_TRUE(broken(40, Flaw::kNone).empty());
}
TEST(MembershipSimulationSlow, OneGroupTrainsEachStepOnceAndAllLaunchersEnd) {
  EXPECT_TRUE(broken(number_in("WEFT_SIM_SEEDS", 20'000), Flaw::kNone).empty());
}
TEST(MembershipSimulation, NoRankIsLostWhenNoNodeReachesTheStoreForAWhile) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    Simulation job(seed, Flaw::kNone, Faults::kSilentStore);
    EXPECT_FALSE(job.run());
    EXPECT_EQ(job.lost_ranks(), 0) << "seed " << seed;
  }
}
// The simulation finds broken rules.
TEST(MembershipSimulation, NoticesRanksThatKeepHalfOfAStep) {
  EXPECT_GT(broken(40, Flaw::kKeepsHalfSteps)[Promise::kOnce], 0);
}
TEST(MembershipSimulation, NoticesAGroupThatTakesTheStateOfANewRank) {
  EXPECT_GT(broken(40, Flaw::kTakesEmptyState)[Promise::kNoLoss], 0);
}
TEST(MembershipSimulation, NoticesAgentsThatDoNotReportLostRanks) {
  EXPECT_GT(broken(40, Flaw::kHidesLostRanks)[Promise::kEnd], 0);
}
TEST(MembershipSimulationSlow, NoticesAMembershipThatTakesSilentNodesForDead) {
  EXPECT_GT(broken(3000, Flaw::kSilentNodesAreDead)[Promise::kOneGroup], 0);
}
TEST(MembershipSimulationSlow, NoticesLaunchersThatDoNotEndRanksThatWereReplaced) {
  EXPECT_GT(broken(3000, Flaw::kIgnoresFence)[Promise::kOneGroup], 0);
}

}  // namespace membership_simulation
}  // namespace weft::launch
