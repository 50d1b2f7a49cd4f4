// Times some steps, measures the link, and plans the buckets and their order from both
// (launch_order.h). Times are those of the slowest rank, so that all ranks assign the same buckets.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/bucket_assignment.h"
#include "weft/engine/internal/launch_order.h"

namespace weft::engine::internal {

// Collective: measures the time of an empty all-reduce, and the additional time per float32 in one
// of up to `most` numbers. Medians of the slowest rank.
LinkCost measure_link(const Group& group, std::int64_t most);

// Collective: returns the largest of the ranks' medians.
double slowest_median(const Group& group, std::vector<double> seconds);

class Tuner {
 public:
  Tuner(Group group, std::size_t params, bool forward);

  // Events of a step, in this order: the first gradient, each gradient, the end of backward, the
  // return of step(), the first uses by forward.
  void step_began();
  void gradient(int param);
  void backward_ended();
  // True if enough steps have been timed.
  bool step_ended();
  void used(int param);

  // Collective.
  StepTimes agreed() const;

 private:
  const Group group_;
  const bool forward_;
  int steps_ = 0;
  std::chrono::steady_clock::time_point began_, ended_;
  // Sums over the steps. needed_ is less than 0 for a parameter that was never used.
  std::vector<double> ready_, needed_;
  std::vector<int> uses_;
  double backward_ = 0;
};

// Bucket sizes, in bytes of float32.
struct Fill {
  std::size_t bucket = 0, first = 0;
};
struct Tuned {
  Fill fill;
  BucketAssignment assignment;
  Launches launches;
  std::string why;  // one line
};
// `order`: parameters in the order in which their gradients become ready. Returns the largest
// buckets that expose the least time, or those of `fill` if `fixed`.
struct TuneOptions {
  Fill fill;
  bool fixed = false;
};
Tuned tune(const std::vector<std::int64_t>& sizes, const std::vector<int>& order,
           const StepTimes& times, const LinkCost& link, const TuneOptions& options);

BucketAssignment fill_buckets(const std::vector<std::int64_t>& sizes, const std::vector<int>& order,
                              const Fill& fill);

}  // namespace weft::engine::internal
