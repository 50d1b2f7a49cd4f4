// Times some steps, measures the link, and from both plans the buckets and their order
// (wire_plan.h). Times are the slowest rank's, so that all ranks plan the same.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/plan.h"
#include "weft/engine/internal/wire_plan.h"

namespace weft::parallel::internal {

// Collective: an all-reduce of no size, and what a float32 more costs in one of up to `most`
// numbers. The slowest rank's medians.
LinkCost measure_link(const Group& group, std::int64_t most);

// Collective: the median of some seconds, on the slowest rank.
double slowest_median(const Group& group, std::vector<double> seconds);

class Tuner {
 public:
  Tuner(Group group, std::size_t params, bool forward);

  // What happens in a step, in this order: the first gradient, each gradient, the end of backward,
  // step() returns, first uses by forward.
  void step_began();
  void gradient(int param);
  void backward_ended();
  // True when enough steps have been timed.
  bool step_ended();
  void used(int param);

  // Collective.
  StepTimes agreed() const;

 private:
  double since(std::chrono::steady_clock::time_point start) const;

  const Group group_;
  const bool forward_;
  int steps_ = 0;
  std::chrono::steady_clock::time_point began_, ended_;
  // Sums over the steps; needed_: less than 0 where nothing has used it.
  std::vector<double> ready_, needed_;
  std::vector<int> uses_;
  double backward_ = 0;
};

// How full buckets are, in bytes of float32.
struct Fill {
  std::size_t bucket = 0, first = 0;
};
struct Tuned {
  Fill fill;
  Plan plan;
  Launches launches;
  std::string why;  // one line
};
// `order`: of parameters as their gradients become ready. The fullest buckets that expose least, or
// those of `fill` where `fixed`.
struct TuneOptions {
  Fill fill;
  bool fixed = false;
};
Tuned tune(const std::vector<std::int64_t>& sizes, const std::vector<int>& order,
           const StepTimes& times, const LinkCost& link, const TuneOptions& options);

Plan plan_buckets(const std::vector<std::int64_t>& sizes, const std::vector<int>& order,
                  const Fill& fill);

}  // namespace weft::parallel::internal
