// The ranks of a simulated job, and what they train: groups that do a step each tick, lose ranks,
// and form again from the newest copy of their state. For membership_simulation_test.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/launch/membership.h"
#include "weft/launch/testing/promises.h"

namespace weft::launch::membership_simulation {

using Phase = RankPhase;

// Steps of the program, and those between two copies in memory and two checkpoints.
constexpr std::size_t kSteps = 550, kCopySteps = 5, kSaveSteps = 50;
// Ticks after which ranks that form their group again wait for no one else.
constexpr int kRegroupLimit = 300;

// The trained weights: how often they contain each step.
struct Weights {
  std::size_t step = 0;
  std::vector<std::uint8_t> contained = std::vector<std::uint8_t>(kSteps);
};

struct Rank {
  int rank = 0, incarnation = 0, attempt = 0;
  std::size_t node = 0;  // index of the simulated node
  bool first = false;
  Phase phase = Phase::kStarting;
  int ready = 0;   // tick at which it has started
  int group = -1;  // index of its group; -1: none yet
  std::shared_ptr<const Weights> copy = nullptr;
  bool alive() const { return phase < Phase::kLost; }
};
using RankPtr = std::shared_ptr<Rank>;

// A node as its ranks notice it.
struct Reach {
  bool runs = false, cut = false;
};

class SimulatedRanks {
 public:
  SimulatedRanks(const MembershipPolicy& policy, Flaw flaw) : policy_(policy), flaw_(flaw) {}

  // `world`: first ranks of the attempt, if this is one of them.
  RankPtr start(const Rank& rank, int world) {
    auto started = std::make_shared<Rank>(rank);
    all_.push_back(started);
    if (rank.first) firsts_[rank.attempt][rank.rank] = started;
    if (rank.first) worlds_[rank.attempt] = world;
    return started;
  }

  // One tick. `nodes`: by index.
  std::optional<Breach> step(int now, const std::vector<Reach>& nodes,
                             const Membership& membership) {
    now_ = now;
    nodes_ = &nodes;
    membership_ = &membership;
    form_first_groups();
    for (const RankPtr& rank : all_) {
      if (!rank->first && rank->phase == Phase::kStarting && rank->ready <= now_)
        rank->phase = Phase::kWaiting;
    }
    for (const auto& [attempt, index] : std::map(latest_)) step_group(attempt, index);
    return train();
  }

 private:
  struct Group {
    std::vector<RankPtr> ranks;
    Weights weights;
  };

  bool is_cut(const Rank& rank) const { return (*nodes_)[rank.node].cut; }
  bool meets_store(const Rank& rank) const {
    return rank.alive() && (*nodes_)[rank.node].runs && !is_cut(rank);
  }
  bool is_whole(int index) const {
    const Group& group = groups_[static_cast<std::size_t>(index)];
    bool cut = false, free = false;
    for (const RankPtr& rank : group.ranks) {
      if (!rank->alive() || rank->group != index) return false;
      (is_cut(*rank) ? cut : free) = true;
    }
    return !(cut && free) && !group.ranks.empty();
  }

  // All groups that can train do a step.
  std::optional<Breach> train() {
    int training = 0;
    for (int index = 0; index < static_cast<int>(groups_.size()); ++index) {
      if (!is_whole(index)) continue;
      if (++training > 1) return breach(Promise::kOneGroup, "two groups train");
      if (index < newest_) return breach(Promise::kOneGroup, "a former group trains");
      newest_ = index;
      if (const auto wrong = do_step(groups_[static_cast<std::size_t>(index)])) return wrong;
    }
    return std::nullopt;
  }

  std::optional<Breach> do_step(Group& group) {
    Weights& weights = group.weights;
    ++weights.contained[weights.step++];
    if (weights.step % kCopySteps == 0) copy(group);
    if (weights.step % kSaveSteps == 0) checkpoint_ = weights;
    if (weights.step < kSteps) return std::nullopt;
    for (const RankPtr& rank : group.ranks) rank->phase = Phase::kDone;
    for (std::size_t step = 0; step < kSteps; ++step) {
      const int times = weights.contained[step];
      if (times == 0) return breach(Promise::kNoLoss, "no step " + std::to_string(step));
      if (times > 1) return breach(Promise::kOnce, "step " + std::to_string(step) + " twice");
    }
    return std::nullopt;
  }

  Breach breach(Promise promise, const std::string& what) const {
    return {promise, what + ", at tick " + std::to_string(now_)};
  }

  static void copy(const Group& group) {
    const auto copied = std::make_shared<const Weights>(group.weights);
    for (const RankPtr& rank : group.ranks) rank->copy = copied;
  }

  // The newest copy that a member has (elastic/holdings.h).
  Weights weights_for(const std::vector<RankPtr>& ranks) const {
    const Rank* newest = nullptr;
    bool is_new = false;
    for (const RankPtr& rank : ranks) {
      is_new = is_new || !rank->copy;
      if (!rank->copy) continue;
      const bool newer = newest == nullptr || rank->group > newest->group ||
                         (rank->group == newest->group && rank->copy->step > newest->copy->step);
      if (newer) newest = rank.get();
    }
    if (newest == nullptr) return checkpoint_;  // an attempt begins
    Weights weights = *newest->copy;
    if (flaw_ == Flaw::kKeepsHalfSteps)
      weights.contained = groups_[static_cast<std::size_t>(newest->group)].weights.contained;
    if (flaw_ == Flaw::kTakesEmptyState && is_new) weights.contained = Weights().contained;
    return weights;
  }

  void form(int attempt, const std::vector<RankPtr>& ranks) {
    const int index = static_cast<int>(groups_.size());
    groups_.push_back({ranks, weights_for(ranks)});
    for (const RankPtr& rank : ranks) {
      rank->group = index;
      rank->phase = Phase::kMember;
    }
    copy(groups_.back());
    latest_[attempt] = index;
  }

  void form_first_groups() {
    for (auto& [attempt, firsts] : firsts_) {
      if (latest_.contains(attempt) || static_cast<int>(firsts.size()) < worlds_[attempt]) continue;
      std::vector<RankPtr> all;
      for (const auto& [number, rank] : firsts) {
        if (meets_store(*rank) && rank->ready <= now_) all.push_back(rank);
      }
      if (all.size() == firsts.size()) form(attempt, all);
    }
  }

  std::vector<RankPtr> newcomers(int attempt) const {
    std::vector<RankPtr> waiting;
    for (const RankPtr& rank : all_) {
      if (rank->attempt == attempt && rank->phase == Phase::kWaiting && meets_store(*rank))
        waiting.push_back(rank);
    }
    return waiting;
  }

  void step_group(int attempt, int index) {
    const std::vector<RankPtr> ranks = groups_[static_cast<std::size_t>(index)].ranks;
    if (!is_whole(index)) return regroup(attempt, ranks);
    broken_since_.erase(attempt);
    const Announcement& told = membership_->announcement;
    const bool all_meet = std::all_of(ranks.begin(), ranks.end(),
                                      [&](const RankPtr& rank) { return meets_store(*rank); });
    if (membership_->attempt != attempt || !all_meet || told.newcomers.empty()) return;
    std::vector<RankPtr> next = ranks;
    for (const RankPtr& rank : newcomers(attempt)) {
      if (told.newcomers.contains(rank->rank)) next.push_back(rank);
    }
    if (static_cast<int>(next.size()) == told.ranks) form(attempt, next);
  }

  // As the ranks agree through the store (comm/internal/rendezvous.h).
  void regroup(int attempt, const std::vector<RankPtr>& ranks) {
    std::vector<RankPtr> next, left_out;
    bool all = true;
    const auto waiting = newcomers(attempt);
    for (const RankPtr& rank : ranks) {
      if (rank->phase == Phase::kDone) return;
      const auto replaces = std::find_if(waiting.begin(), waiting.end(), [&](const RankPtr& other) {
        return other->rank == rank->rank && other->incarnation > rank->incarnation;
      });
      if (replaces != waiting.end()) {
        next.push_back(*replaces);
        if (meets_store(*rank)) left_out.push_back(rank);  // its node leaves
      } else if (meets_store(*rank)) {
        next.push_back(rank);
      } else if (membership_->attempt != attempt || !membership_->gone.contains(rank->rank)) {
        all = false;
      }
    }
    const bool survives =
        std::any_of(next.begin(), next.end(), [](const RankPtr& one) { return one->group >= 0; });
    if (!survives) return;
    const int began = broken_since_.try_emplace(attempt, now_).first->second;
    const int least = policy_.min_ranks > 0 ? policy_.min_ranks : policy_.max_ranks;
    if (!all && now_ - began <= kRegroupLimit) return;
    broken_since_.erase(attempt);
    // They find that the others go on without them.
    for (const RankPtr& rank : left_out) rank->phase = Phase::kFailed;
    if (static_cast<int>(next.size()) >= std::min<int>(least, static_cast<int>(ranks.size())))
      return form(attempt, next);
    for (const RankPtr& rank : next) {
      if (rank->group >= 0) rank->phase = Phase::kFailed;
    }
  }

  const MembershipPolicy policy_;
  const Flaw flaw_;
  int now_ = 0;
  const std::vector<Reach>* nodes_ = nullptr;
  const Membership* membership_ = nullptr;
  std::vector<RankPtr> all_;
  std::vector<Group> groups_;
  Weights checkpoint_;  // the newest on disk; without one, training begins again
  int newest_ = 0;      // the newest group that has done a step
  // By attempt.
  std::map<int, int> latest_, worlds_, broken_since_;
  std::map<int, std::map<int, RankPtr>> firsts_;
};

}  // namespace weft::launch::membership_simulation
