// Branch and bound over a list. A bound takes a tenth of a millisecond and is never above the
// simulated time. Layouts are simulated in the order of their bounds. The first bound that is no
// better than the worst layout kept ends the search: no later layout can be better.
//
//   all layouts ── bounds, and the least memory ── sort ── simulate until a bound is too large
//                                                     ── refine the best one ── explain the others
//
// A layout is left out if its least memory is above that of the largest device. The others are
// checked when they are simulated. With goal memory there is no bound, and all layouts are
// simulated.
//
// Time. Bounds may take 70 % of it, simulations the rest. Layouts get their bounds in an order that
// is spread over the space. So if there is no time for all bounds, the search goes on with a sample
// of the space.
//
// One thread. cache_ comes before job_, which refers to it.
#include "weft/plan/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/plan/search/internal/refine.h"
#include "weft/plan/step/bound.h"

namespace weft::plan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Bounded {
  Layout layout;
  double seconds = 0;
  double lacks = 0;  // Bytes that it surely lacks.
};

// What every layout of the job costs for each second of a step.
struct Rates {
  double dollars = 0, watts = 0;
};

Rates rates_of(const Cluster& cluster) {
  Rates rates;
  for (const NodeType& type : cluster.nodes) {
    const Accelerator& a = cluster.accelerators[static_cast<std::size_t>(type.accelerator)];
    rates.dollars += a.price / 3600 * type.devices * type.count;
    rates.watts += a.watts * type.devices * type.count;
  }
  return rates;
}

void check_goal(const Cluster& cluster, Goal goal) {
  for (const Accelerator& a : cluster.accelerators) {
    WEFT_REQUIRE(goal != Goal::kCost || a.price > 0,
                 "goal cost: the price of " + a.name +
                     " is not known; give accelerator.price_per_hour in the cluster file, or "
                     "--price");
    WEFT_REQUIRE(goal != Goal::kEnergy || a.watts > 0,
                 "goal energy: the power of " + a.name +
                     " is not known; give accelerator.watts in the cluster file");
  }
}

double least_score(const Bounded& bounded, Goal goal, const Rates& rates) {
  switch (goal) {
    case Goal::kTime: return bounded.seconds;
    case Goal::kCost: return bounded.seconds * rates.dollars;
    case Goal::kEnergy: return bounded.seconds * rates.watts;
    case Goal::kMemory: return 0;
  }
  return 0;
}

double largest_memory(const Cluster& cluster) {
  double largest = 0;
  for (const NodeType& type : cluster.nodes)
    largest =
        std::max(largest, cluster.accelerators[static_cast<std::size_t>(type.accelerator)].memory);
  return largest;
}

class Search {
 public:
  Search(const Job& job, const SearchOptions& options)
      : job_(with_cache(job, cache_)),
        options_(options),
        rates_(rates_of(job.cluster)),
        capacity_(largest_memory(job.cluster) * (1 - options.headroom)),
        start_(options.clock ? options.clock() : 0) {}

  Found run() {
    std::vector<Bounded> bounded = bounds();
    std::sort(bounded.begin(), bounded.end(), [&](const Bounded& a, const Bounded& b) {
      return least_score(a, options_.goal, rates_) < least_score(b, options_.goal, rates_);
    });
    for (const Bounded& one : bounded) {
      if (least_score(one, options_.goal, rates_) >= worst_kept()) break;
      if (out_of_time(1)) {
        found_.complete = false;
        break;
      }
      simulate(one.layout);
    }
    if (found_.best.empty()) find_nearest();
    if (options_.refine && !found_.best.empty() && !out_of_time(1)) refine_best();
    explain();
    return std::move(found_);
  }

 private:
  bool out_of_time(double share) const {
    return options_.clock && options_.seconds > 0 &&
           options_.clock() - start_ > options_.seconds * share;
  }

  double worst_kept() const {
    const auto keep = static_cast<std::size_t>(std::max(1, options_.keep));
    return found_.best.size() < keep ? kInfinity : found_.best.back().score;
  }

  Job job_with(const Layout& layout) const {
    Job job = job_;
    job.layout = layout;
    return job;
  }

  // Layouts that cannot run (a stage without blocks …) are left out. The layouts are spread over
  // the space, so that a cut leaves a sample of it.
  std::vector<Bounded> bounds() {
    const std::vector<Layout> layouts = layouts_of(job_, options_.space);
    found_.layouts = static_cast<std::int64_t>(layouts.size());
    std::vector<Bounded> all;
    const std::size_t count = layouts.size(), stride = stride_of(count);
    Job job = job_;
    for (std::size_t i = 0, at = 0; i < count; ++i, at = (at + stride) % count) {
      if (i % 64 == 0 && out_of_time(0.7)) {
        found_.complete = false;
        break;
      }
      job.layout = layouts[at];
      if (const auto bound = try_bound(job)) {
        const double lacks = bound->memory - capacity_;
        all.push_back({layouts[at], bound->seconds, lacks});
      }
    }
    // For the message if nothing fits: the layout that lacks least by its bound.
    const auto nearest = std::min_element(
        all.begin(), all.end(), [](const auto& a, const auto& b) { return a.lacks < b.lacks; });
    if (nearest != all.end()) nearest_ = *nearest;
    all.erase(
        std::remove_if(all.begin(), all.end(), [](const Bounded& one) { return one.lacks > 0; }),
        all.end());
    return all;
  }

  // A step through the list that visits every layout and has no common factor with its length.
  static std::size_t stride_of(std::size_t count) {
    std::size_t stride = 7919 % std::max<std::size_t>(1, count);
    while (stride > 1 && std::gcd(stride, count) != 1) ++stride;
    return std::max<std::size_t>(1, stride);
  }

  static std::optional<Bound> try_bound(const Job& job) {
    try {
      return bound_of(job);
    } catch (const Error&) {  // the layout is impossible
      return std::nullopt;
    }
  }

  // Most bytes that a rank lacks, with the headroom; 0: the step fits.
  double lacks_of(const Step& step) const {
    double lacks = 0;
    for (std::size_t r = 0; r < step.memory.size(); ++r)
      lacks = std::max(lacks, step.memory[r].total() - step.capacity[r] * (1 - options_.headroom));
    return lacks;
  }

  void simulate(const Layout& layout) {
    LayoutCandidate candidate{.layout = layout, .step = simulate_step(job_with(layout))};
    ++found_.simulated;
    candidate.score = score_of(candidate.step, options_.goal);
    const double lacks = lacks_of(candidate.step);
    if (lacks > 0) {
      if (!closest_ || lacks < closest_lacks_) {
        closest_lacks_ = lacks;
        closest_ = std::move(candidate);
      }
      return;
    }
    const auto at = std::upper_bound(
        found_.best.begin(), found_.best.end(), candidate,
        [](const LayoutCandidate& a, const LayoutCandidate& b) { return a.score < b.score; });
    found_.best.insert(at, std::move(candidate));
    if (found_.best.size() > static_cast<std::size_t>(std::max(1, options_.keep)))
      found_.best.pop_back();
  }

  void find_nearest() {
    if (closest_) {
      found_.nearest.push_back(std::move(*closest_));
    } else if (nearest_) {
      LayoutCandidate candidate{.layout = nearest_->layout,
                                .step = simulate_step(job_with(nearest_->layout))};
      candidate.score = score_of(candidate.step, options_.goal);
      found_.nearest.push_back(std::move(candidate));
    }
  }

  void refine_best() {
    LayoutCandidate& best = found_.best.front();
    const Job job = job_with(best.layout);
    const Layout refined = internal::refine(job, best.step, options_.headroom);
    if (refined == best.layout) return;
    LayoutCandidate candidate{.layout = refined, .step = simulate_step(job_with(refined))};
    candidate.score = score_of(candidate.step, options_.goal);
    // refine() makes steps shorter. That need not be better by the goal.
    if (candidate.score < best.score && lacks_of(candidate.step) == 0) best = std::move(candidate);
  }

  // The part of the step that costs most more than in the best layout.
  void explain() {
    if (found_.best.empty()) return;
    const Step& best = found_.best.front().step;
    for (std::size_t i = 1; i < found_.best.size(); ++i)
      found_.best[i].why = internal::why_slower(found_.best[i].step, best);
  }

  static Job with_cache(Job job, StepCache& cache) {
    job.cache = &cache;
    return job;
  }

  StepCache cache_;
  Job job_;
  const SearchOptions& options_;
  Rates rates_;
  double capacity_;
  double start_;
  Found found_;
  std::optional<Bounded> nearest_;
  std::optional<LayoutCandidate> closest_;
  double closest_lacks_ = 0;
};

}  // namespace

const char* to_string(Goal goal) {
  switch (goal) {
    case Goal::kTime: return "time";
    case Goal::kCost: return "cost";
    case Goal::kMemory: return "memory";
    case Goal::kEnergy: return "energy";
  }
  return "time";
}

Goal parse_goal(std::string_view name) {
  for (const Goal goal : {Goal::kTime, Goal::kCost, Goal::kMemory, Goal::kEnergy})
    if (name == to_string(goal)) return goal;
  const auto near = nearest(name, {"time", "cost", "memory", "energy"});
  throw Error(Errc::kInvalidArgument,
              "goal \"" + std::string(name.substr(0, 40)) + "\" is not known; " +
                  (near ? "did you mean " + *near + "?" : "use time, cost, memory or energy"));
}

double score_of(const Step& step, Goal goal) {
  switch (goal) {
    case Goal::kTime: return step.seconds;
    case Goal::kCost: return step.dollars;
    case Goal::kMemory: return step.peak().total();
    case Goal::kEnergy: return step.joules;
  }
  return step.seconds;
}

Found search(const Job& job, const SearchOptions& options) {
  check_goal(job.cluster, options.goal);
  for (const std::string& codec : options.space.codecs) codec_ratio(codec);
  for (const Rule& rule : options.space.rules) arrays_of(rule);
  return Search(job, options).run();
}

}  // namespace weft::plan
