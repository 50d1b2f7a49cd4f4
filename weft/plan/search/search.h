// Searches for the best layout of a model on a cluster.
//
//   const Found found = search(job, {.goal = Goal::kTime});
//   found.best[0].layout;          // the best one; best[1…] the next best
//
// Every layout of the space gets a lower bound of its time and of its memory. Layouts are simulated
// in the order of their bounds until no bound is below the best ones found. So the result is the
// optimum of the space, unless the time runs out: then `complete` is false. After that, the best
// layout is refined: cuts of stages, batch shares of unequal replicas.
//
// Pure except for the clock, which is an argument.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/plan/step/step.h"

namespace weft::plan {

enum class Goal : std::uint8_t { kTime, kCost, kMemory, kEnergy };
const char* to_string(Goal goal);
Goal parse_goal(std::string_view name);  // time, cost, memory, energy. Throws kInvalidArgument.

// Axes and options that may change. The job's layout gives what does not: global batch, precision.
struct Space {
  bool dp = true, fsdp = true, tp = true, pp = true, cp = true, ep = true;
  int most_tp = 0;                           // 0: devices of a node.
  int only_pp = 0;                           // Number of stages. 0: any.
  std::vector<int> zero_stages = {1, 2, 3};  // Of fsdp.
  std::vector<schedule::pipeline::Algorithm> schedules = {
      schedule::pipeline::Algorithm::kOneForwardOneBackward,
      schedule::pipeline::Algorithm::kInterleaved, schedule::pipeline::Algorithm::kZeroBubbleH1,
      schedule::pipeline::Algorithm::kZeroBubbleV};
  std::vector<int> virtual_stages = {2};  // Of the interleaved schedule.
  std::vector<Recompute> recomputes = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  std::vector<bool> sequence_parallel = {false};
  std::vector<Rule> rules = {{}};  // Of dp. Not with cp and ep.
  std::vector<std::string> codecs = {"none"};
  std::vector<int> micro_batches;  // Sizes in samples. Empty: powers of two, and the largest.
};

struct SearchOptions {
  Goal goal = Goal::kTime;
  Space space;
  double headroom = 0.05;  // Share of a device's memory that stays free.
  int keep = 4;            // Layouts in `best`.
  // Seconds that the search may take, by `clock`. 0: no limit.
  double seconds = 8;
  std::function<double()> clock;  // Seconds of a monotonic clock. Empty: no limit.
  bool refine = true;
};

struct LayoutCandidate {
  Layout layout;
  Step step;
  double score = 0;  // Seconds, dollars, bytes or joules, by the goal. Less is better.
  std::string why;   // Why it loses to the best one; empty for the best one.
};

struct Found {
  std::vector<LayoutCandidate> best;
  std::int64_t layouts = 0;  // Of the space.
  std::int64_t simulated = 0;
  bool complete = true;  // False: the time ran out.
  // If no layout fits: the one that lacks least memory, and what it lacks.
  std::vector<LayoutCandidate> nearest;
};

// Throws Error(kInvalidArgument) for a job that no layout can run (a batch smaller than one sample,
// a model that cannot be described, a goal without the prices or watts that it needs, an unknown
// codec). If no layout fits, `best` is empty and `nearest` is not.
Found search(const Job& job, const SearchOptions& options);

// All layouts of a space, unordered: for tests and for `search`.
std::vector<Layout> layouts_of(const Job& job, const Space& space);

// Score of a step by the goal.
double score_of(const Step& step, Goal goal);

}  // namespace weft::plan
