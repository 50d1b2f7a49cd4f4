// Searches an order for given costs. It tries a greedy scheduler with several settings (Habit), and
// the fixed schedules. The shortest iteration wins.
//
// Source: the heuristic of Qi, Wan, Huang, Lin: Zero bubble pipeline parallelism, 2023, section
// 3.1. A free rank takes the first of these that is possible, or else waits:
//   - a backward-input that is ready;
//   - if the rank is full, a backward-weight, which frees memory for a forward that is ready;
//   - a forward that is ready and for which it has memory;
//   - a backward-weight, if it would otherwise wait for at least `patience` times the cost of one.
// A rank is full when it holds `memory` micro-batches. Habits differ in the memory that they use
// (more is not always better) and in their patience.
#include <algorithm>
#include <limits>

#include "weft/base/error.h"
#include "weft/schedule/pipeline/internal/algorithms.h"
#include "weft/schedule/pipeline/internal/needs.h"
#include "weft/schedule/pipeline/play.h"

namespace weft::schedule::pipeline::internal {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Habit {
  int memory = 1;
  double patience = 0;  // in units of a backward-weight's cost
};

class Greedy {
 public:
  Greedy(const Request& q, Habit habit)
      : q_(q),
        habit_(habit),
        results_(q),
        ranks_(static_cast<std::size_t>(q.ranks)),
        actions_(ranks_.size()) {}

  // Always advances the rank that can begin first. Results of other ranks come later than that, so
  // no choice misses one.
  std::vector<Actions> run() {
    for (int left = 3 * q_.ranks * q_.micro_batches; left > 0; --left) {
      Choice best;
      int who = -1;
      for (int rank = 0; rank < q_.ranks; ++rank) {
        const Choice choice = choose(rank);
        if (choice.begin >= best.begin) continue;
        best = choice;
        who = rank;
      }
      WEFT_CHECK(who >= 0, "the greedy pipeline scheduler is stuck");
      take(who, best);
    }
    return actions_;
  }

 private:
  struct Rank {
    double free = 0;
    int done[4] = {};  // number of micro-batches, by enum Work
  };
  struct Choice {
    double begin = kNever;
    Work work = Work::kForward;
  };

  // Time at which the rank can begin its next micro-batch of this work.
  double next(int rank, Work work) const {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    const int i = r.done[static_cast<int>(work)];
    if (i == q_.micro_batches) return kNever;
    const auto ready = results_.ready({work, i, rank});
    return ready ? std::max(*ready, r.free) : kNever;
  }

  Choice choose(int rank) const {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    const double input = next(rank, Work::kBackwardInput),
                 weight = next(rank, Work::kBackwardWeight);
    double forward = next(rank, Work::kForward);
    const bool full = r.done[static_cast<int>(Work::kForward)] -
                          r.done[static_cast<int>(Work::kBackwardWeight)] >=
                      habit_.memory;
    if (input <= r.free) return {input, Work::kBackwardInput};
    if (full && forward <= r.free && weight < kNever) return {weight, Work::kBackwardWeight};
    if (full) forward = kNever;
    if (forward <= r.free) return {forward, Work::kForward};
    const double soonest = std::min(input, forward);
    if (weight < kNever && soonest - r.free >= habit_.patience * q_.costs.backward_weight)
      return {weight, Work::kBackwardWeight};
    return input <= forward ? Choice{input, Work::kBackwardInput} : Choice{forward, Work::kForward};
  }

  void take(int rank, const Choice& choice) {
    Rank& r = ranks_[static_cast<std::size_t>(rank)];
    const Action action{choice.work, r.done[static_cast<int>(choice.work)]++, rank};
    r.free = choice.begin + cost_of(q_.costs, choice.work);
    results_.done(action, r.free);
    actions_[static_cast<std::size_t>(rank)].push_back(action);
  }

  const Request& q_;
  Habit habit_;
  Results results_;
  std::vector<Rank> ranks_;
  std::vector<Actions> actions_;
};

// Memory limits to try: up to 2p in steps of max(1, p/8), then doubled until the limit.
std::vector<int> memories(const Request& q) {
  const int most = memory_of(q);
  std::vector<int> result;
  for (int memory = 1; memory < most;
       memory += memory < 2 * q.ranks ? std::max(1, q.ranks / 8) : memory)
    result.push_back(memory);
  result.push_back(most);
  return result;
}

}  // namespace

int memory_of(const Request& q) {
  return std::min(q.micro_batches, q.memory > 0 ? q.memory : 2 * q.ranks - 1);
}

std::vector<Actions> automatic(const Request& request) {
  Schedule best{request, {}};
  Timing fastest{.makespan = kNever, .iteration = kNever};
  const auto consider = [&](std::vector<Actions> actions) {
    Schedule schedule{request, std::move(actions)};
    const Timing timing = play(schedule, request.costs);
    if (std::pair(timing.iteration, timing.makespan) >=
        std::pair(fastest.iteration, fastest.makespan))
      return;
    best = std::move(schedule);
    fastest = timing;
  };
  for (const Algorithm algorithm :
       {Algorithm::kOneForwardOneBackward, Algorithm::kZeroBubbleH1, Algorithm::kZeroBubbleH2}) {
    Request handmade = request;
    handmade.algorithm = algorithm;
    handmade.memory = 0;
    if (most_held(handmade, 0) <= memory_of(request)) consider(make(handmade).actions);
  }
  for (const int memory : memories(request)) {
    for (const double patience : {0.0, 0.5, 1.0})
      consider(Greedy(request, {memory, patience}).run());
  }
  return best.actions;
}

}  // namespace weft::schedule::pipeline::internal
