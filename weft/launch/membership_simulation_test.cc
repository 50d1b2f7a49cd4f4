// Jobs on several nodes in a simulation: agents with delays that compare and set the plan, nodes
// that are lost or cut off, agents that stop for a while, ranks that die, nodes that come late.
// Promises: at no time do two groups of the job train, and all launchers end. One seed again:
//   WEFT_SIM_SEED=17 ctest --test-dir build/release -R launch.MembershipSimulation
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <random>

#include "weft/launch/internal/orders.h"
#include "weft/launch/membership.h"

namespace weft::launch {
namespace membership_simulation {

using Phase = RankPhase;

// One tick is 100 ms.
constexpr int kLease = 15, kAloneLimit = 100, kStarts = 20, kGrace = 50, kFarewellTicks = 30;
constexpr int kFaultsEnd = 400, kProgramEnds = 600, kJoinLimit = 600, kLimit = 3000;

// Rules that the tests break on purpose.
enum class Flaw { kNone, kSilentNodesAreDead, kIgnoresFence };

struct Rank {
  int rank = 0, incarnation = 0, attempt = 0;
  std::size_t node = 0;  // index of the simulated node
  bool first = false;
  Phase phase = Phase::kStarting;
  int ready = 0;   // tick at which it has started
  int group = -1;  // index of its group; -1: none yet
  bool alive() const { return phase < Phase::kLost; }
};
using RankPtr = std::shared_ptr<Rank>;

struct Group {
  int attempt = 0;
  std::vector<RankPtr> ranks;
};

struct Node {
  int number = -1, slots = 1;  // number: by the store
  bool exists = false, lost = false, ended = false, leaves = false;
  int heard = 0, paused_until = 0, cut_until = 0;
  struct Swap {
    JobPlan plan;
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
  Simulation(unsigned seed, Flaw flaw) : random_(seed), flaw_(flaw) {
    nodes_.resize(static_cast<std::size_t>(2 + draw(4)));
    policy_.max_nodes = static_cast<int>(nodes_.size()) - draw(2);
    policy_.min_nodes = 1 + draw(policy_.max_nodes);
    const int slots = 1 + draw(2);
    policy_.max_ranks = slots * policy_.max_nodes;
    policy_.min_ranks = draw(2) == 0 ? 0 : 1 + draw(policy_.max_ranks);
    policy_.max_replacements = draw(3) * 10;
    for (Node& node : nodes_) node.slots = slots;
    for (int node = 0; node < policy_.min_nodes; ++node)
      nodes_[static_cast<std::size_t>(node)].exists = true;
  }

  // Empty, or the broken promise.
  std::string run() {
    for (now_ = 0; now_ < kLimit; ++now_) {
      if (now_ < kFaultsEnd) make_faults();
      expire();
      for (std::size_t i = 0; i < nodes_.size(); ++i) step(i);
      step_ranks();
      if (training() > 1) return "two groups train at tick " + std::to_string(now_);
      const bool all_ended =
          std::none_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.runs(); });
      if (all_ended) return "";
    }
    return "launchers still run; the plan: " + to_text(plan_);
  }

 private:
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  bool chance(double p) { return std::uniform_real_distribution<>()(random_) < p; }
  bool is_cut(const Node& node) const { return node.cut_until > now_; }

  void make_faults() {
    for (Node& node : nodes_) {
      if (!node.exists) node.exists = chance(0.01);
      if (!node.runs()) continue;
      if (chance(0.0008)) lose(node);
      if (chance(0.0008)) node.leaves = true;
      if (chance(0.002)) node.paused_until = now_ + 1 + draw(30);
      for (auto& [incarnation, rank] : node.started) {
        if (rank->alive() && chance(0.001)) rank->phase = Phase::kLost;
      }
    }
    if (chance(0.003)) {
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
    node.heard = now_;
    if (!plan_.formed && now_ > kJoinLimit) return give_up(node);
    if (node.number < 0) {
      node.number = count_++;
      leases_[node.number] = now_ + kLease;
    } else if (!leases_.contains(node.number)) {
      node.number = -1;
      node.swap.reset();
      if (flaw_ == Flaw::kIgnoresFence) return;
      node.orders = {};
      end_ranks(node);
      return;
    }
    leases_[node.number] = now_ + kLease;
    reports_[node.number] = report_of(node);
    if (node.swap && node.swap->due <= now_) {
      if (node.swap->revision == revision_) {
        plan_ = node.swap->plan;
        ++revision_;
      }
      node.swap.reset();
    }
    if (!node.swap && chance(0.7)) plan(node);
  }

  void give_up(Node& node) {
    node.ended = true;
    end_ranks(node);
  }

  void plan(Node& node) {
    std::vector<NodeReport> reports;
    for (const auto& [number, report] : reports_) reports.push_back(report);
    node.orders = internal::orders_for(node.number, plan_, reports);
    if (flaw_ == Flaw::kSilentNodesAreDead) {
      for (auto [number, report] : silent_) {
        if (reports_.contains(number)) continue;
        for (auto& [rank, said] : report.ranks) said = {said.incarnation, Phase::kLost, "", 137};
        report.slots = 0;
        reports.push_back(report);
      }
    }
    const JobPlan next = next_plan(plan_, reports, policy_, now_ > 50);
    if (!(next == plan_)) node.swap = {next, revision_, now_ + draw(4)};
  }

  NodeReport report_of(const Node& node) const {
    NodeReport report{.node = node.number, .slots = node.slots};
    bool running = false;
    for (const auto& [incarnation, rank] : node.started) {
      running = running || rank->alive();
      const auto place = node.orders.plan.ranks.find(rank->rank);
      if (place == node.orders.plan.ranks.end() || place->second.incarnation != incarnation)
        continue;
      const int code = rank->phase == Phase::kLost ? 137 : rank->phase == Phase::kFailed ? 200 : 0;
      report.ranks[rank->rank] = {incarnation, rank->phase, "", code};
    }
    if (now_ > 100) report.run = "/run";
    if (node.leaves) report.leave = {"notice", 143, 0};
    report.left = node.orders.is_over() && !running;
    return report;
  }

  void step_launcher(std::size_t index) {
    Node& node = nodes_[index];
    const internal::NodeOrders& orders = node.orders;
    if (orders.is_over()) {
      if (node.over_since < 0) node.over_since = now_;
      if (!orders.plan.end.empty() && now_ - node.over_since > kGrace) end_ranks(node);
      const bool running = std::any_of(node.started.begin(), node.started.end(),
                                       [](const auto& one) { return one.second->alive(); });
      if (running) node.over_since = std::max(node.over_since, now_ - kGrace - 1);
      if (!running && (orders.all_left || now_ - node.over_since > kGrace + kFarewellTicks))
        node.ended = true;
      return;
    }
    for (auto& [incarnation, rank] : node.started) {
      const auto place = orders.plan.ranks.find(rank->rank);
      const bool stays =
          place != orders.plan.ranks.end() && place->second.incarnation == incarnation;
      if (!stays && rank->alive() && flaw_ != Flaw::kIgnoresFence) rank->phase = Phase::kLost;
    }
    if (orders.plan.leaving.contains(node.number)) node.ended = true;
    for (const auto& [rank, place] : orders.plan.ranks) {
      if (node.started.contains(place.incarnation)) continue;
      auto started = std::make_shared<Rank>();
      *started = {.rank = rank,
                  .incarnation = place.incarnation,
                  .attempt = orders.plan.attempt,
                  .node = index,
                  .first = place.first,
                  .ready = now_ + 1 + draw(kStarts)};
      node.started[place.incarnation] = started;
      if (place.first) firsts_[orders.plan.attempt][rank] = started;
      if (place.first) worlds_[orders.plan.attempt] = orders.world;
    }
  }

  bool meets_store(const Rank& rank) const {
    const Node& node = nodes_[rank.node];
    return rank.alive() && !node.lost && !node.ended && !is_cut(node);
  }
  bool is_whole(const Group& group, int index) const {
    bool cut = false, free = false;
    for (const RankPtr& rank : group.ranks) {
      if (!rank->alive() || rank->group != index) return false;
      (is_cut(nodes_[rank->node]) ? cut : free) = true;
    }
    return !(cut && free) && !group.ranks.empty();
  }
  int training() const {
    int count = 0;
    for (std::size_t i = 0; i < groups_.size(); ++i)
      count += is_whole(groups_[i], static_cast<int>(i));
    return count;
  }

  void form(int attempt, const std::vector<RankPtr>& ranks) {
    const int index = static_cast<int>(groups_.size());
    for (const RankPtr& rank : ranks) {
      rank->group = index;
      rank->phase = Phase::kMember;
    }
    groups_.push_back({attempt, ranks});
    latest_[attempt] = index;
  }

  void step_ranks() {
    for (auto& [attempt, firsts] : firsts_) {
      if (latest_.contains(attempt) || static_cast<int>(firsts.size()) < worlds_[attempt]) continue;
      std::vector<RankPtr> all;
      for (const auto& [number, rank] : firsts) {
        if (meets_store(*rank) && rank->ready <= now_) all.push_back(rank);
      }
      if (all.size() == firsts.size()) form(attempt, all);
    }
    for (Node& node : nodes_) {
      for (auto& [incarnation, rank] : node.started) {
        if (!rank->first && rank->phase == Phase::kStarting && rank->ready <= now_)
          rank->phase = Phase::kWaiting;
      }
    }
    for (const auto& [attempt, index] : std::map(latest_)) step_group(attempt, index);
  }

  std::vector<RankPtr> newcomers(int attempt) const {
    std::vector<RankPtr> waiting;
    for (const Node& node : nodes_) {
      for (const auto& [incarnation, rank] : node.started) {
        if (rank->attempt == attempt && rank->phase == Phase::kWaiting && meets_store(*rank))
          waiting.push_back(rank);
      }
    }
    return waiting;
  }

  void step_group(int attempt, int index) {
    const Group group = groups_[static_cast<std::size_t>(index)];
    if (!is_whole(group, index)) return regroup(attempt, group);
    broken_since_.erase(attempt);
    if (now_ >= kProgramEnds) {
      for (const RankPtr& rank : group.ranks) rank->phase = Phase::kDone;
      return;
    }
    const Announcement& told = plan_.announcement;
    const bool all_meet = std::all_of(group.ranks.begin(), group.ranks.end(),
                                      [&](const RankPtr& rank) { return meets_store(*rank); });
    if (plan_.attempt != attempt || !all_meet || told.newcomers.empty()) return;
    std::vector<RankPtr> next = group.ranks;
    for (const RankPtr& rank : newcomers(attempt)) {
      if (told.newcomers.contains(rank->rank)) next.push_back(rank);
    }
    if (static_cast<int>(next.size()) == told.ranks) form(attempt, next);
  }

  // As the ranks agree through the store (comm/internal/rendezvous.h).
  void regroup(int attempt, const Group& group) {
    std::vector<RankPtr> next;
    bool all = true;
    const auto waiting = newcomers(attempt);
    for (const RankPtr& rank : group.ranks) {
      if (rank->phase == Phase::kDone) return;
      const auto replaces = std::find_if(waiting.begin(), waiting.end(), [&](const RankPtr& other) {
        return other->rank == rank->rank && other->incarnation > rank->incarnation;
      });
      if (replaces != waiting.end()) {
        next.push_back(*replaces);
      } else if (meets_store(*rank)) {
        next.push_back(rank);
      } else if (plan_.attempt != attempt || !plan_.gone.contains(rank->rank)) {
        all = false;
      }
    }
    const bool survives =
        std::any_of(next.begin(), next.end(), [](const RankPtr& one) { return one->group >= 0; });
    if (!survives) return;
    const int began = broken_since_.try_emplace(attempt, now_).first->second;
    const int least = policy_.min_ranks > 0 ? policy_.min_ranks : policy_.max_ranks;
    const bool late = now_ - began > 300;
    if (!all && !late) return;
    broken_since_.erase(attempt);
    if (static_cast<int>(next.size()) >= std::min<int>(least, static_cast<int>(group.ranks.size())))
      return form(attempt, next);
    for (const RankPtr& rank : next) {
      if (rank->group >= 0) rank->phase = Phase::kFailed;
    }
  }

  std::mt19937 random_;
  const Flaw flaw_;
  MembershipPolicy policy_;
  int now_ = 0;
  std::vector<Node> nodes_;
  // The store.
  JobPlan plan_;
  int revision_ = 0, count_ = 0;
  std::map<int, int> leases_;  // by node number: its end
  std::map<int, NodeReport> reports_, silent_;
  // The ranks: by attempt.
  std::vector<Group> groups_;
  std::map<int, int> latest_, worlds_, broken_since_;
  std::map<int, std::map<int, RankPtr>> firsts_;
};

// The number of seeds that break a promise.
int broken(int seeds, Flaw flaw, bool report) {
  const char* const only = std::getenv("WEFT_SIM_SEED");
  const int first = only != nullptr ? std::atoi(only) : 1;
  int count = 0;
  for (int seed = first; seed < first + (only != nullptr ? 1 : seeds); ++seed) {
    const std::string what = Simulation(static_cast<unsigned>(seed), flaw).run();
    count += !what.empty();
    if (report && !what.empty() && count <= 3) ADD_FAILURE() << "seed " << seed << ": " << what;
  }
  return count;
}

TEST(MembershipSimulation, OneGroupTrainsAndAllLaunchersEnd) {
  EXPECT_EQ(broken(40, Flaw::kNone, true), 0);
}
TEST(MembershipSimulationSlow, OneGroupTrainsAndAllLaunchersEnd) {
  EXPECT_EQ(broken(20'000, Flaw::kNone, true), 0);
}
// The simulation finds broken rules.
TEST(MembershipSimulationSlow, NoticesAPlanThatTakesSilentNodesForDead) {
  EXPECT_GT(broken(3000, Flaw::kSilentNodesAreDead, false), 0);
}
TEST(MembershipSimulationSlow, NoticesLaunchersThatDoNotEndRanksThatWereReplaced) {
  EXPECT_GT(broken(3000, Flaw::kIgnoresFence, false), 0);
}

}  // namespace membership_simulation
}  // namespace weft::launch
