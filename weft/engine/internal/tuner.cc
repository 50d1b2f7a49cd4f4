#include "weft/engine/internal/tuner.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/base/deadline.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"

namespace weft::engine::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTunerSteps = 4;
constexpr std::size_t kMebi = std::size_t{1} << 20;
constexpr std::size_t kSizes[] = {64 * kMebi, 32 * kMebi, 25 * kMebi, 16 * kMebi,
                                  8 * kMebi,  4 * kMebi,  2 * kMebi,  1 * kMebi};
// Smaller buckets must reduce exposed time by at least this factor; smaller gains are
// noise.
constexpr double kWorthwhile = 0.97;

double median_all_reduce(const Group& group, std::int64_t count, int times) {
  at::Tensor probe = at::zeros({count});
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    group.barrier();
    const auto start = Clock::now();
    group.all_reduce(probe);
    seconds.push_back(seconds_since(start));
  }
  return slowest_median(group, std::move(seconds));
}

std::string ms(double seconds) { return formatted("%.2f ms", seconds * 1e3); }

std::string mib(const Fill& fill) {
  return formatted("%.3g MiB", static_cast<double>(fill.bucket) / static_cast<double>(kMebi));
}

}  // namespace

double slowest_median(const Group& group, std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  at::Tensor slowest = at::full({1}, *middle, at::kDouble);
  group.all_reduce(slowest, ReduceOp::kMax);
  return slowest.item<double>();
}

LinkCost measure_link(const Group& group, std::int64_t most) {
  const std::int64_t long_one = std::clamp<std::int64_t>(most, 1024, std::int64_t{1} << 20);
  LinkCost link;
  link.latency = median_all_reduce(group, 16, 9);
  link.element = std::max(0.0, median_all_reduce(group, long_one, 3) - link.latency) /
                 static_cast<double>(long_one);
  return link;
}

Tuner::Tuner(Group group, std::size_t params, bool forward)
    : group_(std::move(group)),
      forward_(forward),
      ready_(params, 0),
      needed_(params, 0),
      uses_(params, 0) {}

void Tuner::step_began() { began_ = Clock::now(); }
void Tuner::gradient(int param) {
  ready_[static_cast<std::size_t>(param)] += seconds_since(began_);
}
void Tuner::backward_ended() { backward_ += seconds_since(began_); }

bool Tuner::step_ended() {
  ended_ = Clock::now();
  return ++steps_ >= kTunerSteps;
}

void Tuner::used(int param) {
  needed_[static_cast<std::size_t>(param)] += seconds_since(ended_);
  ++uses_[static_cast<std::size_t>(param)];
}

StepTimes Tuner::agreed() const {
  const std::size_t params = ready_.size();
  std::vector<double> own;
  own.push_back(backward_ / steps_);
  for (double ready : ready_) own.push_back(ready / steps_);
  // A parameter that forward never used is not waited for.
  constexpr double kNever = 1e6;
  for (std::size_t i = 0; i < params; ++i)
    own.push_back(uses_[i] > 0 ? needed_[i] / uses_[i] : kNever);
  at::Tensor all = at::tensor(own, at::kDouble);
  group_.all_reduce(all, ReduceOp::kMax);
  const double* const values = all.const_data_ptr<double>();
  StepTimes times;
  times.backward = values[0];
  times.ready.assign(values + 1, values + 1 + params);
  if (forward_) times.needed.assign(values + 1 + params, values + 1 + 2 * params);
  return times;
}

BucketAssignment fill_buckets(const std::vector<std::int64_t>& sizes, const std::vector<int>& order,
                              const Fill& fill) {
  const auto elements = [](std::size_t bytes) {
    return static_cast<std::int64_t>(bytes / sizeof(float));
  };
  return assign_buckets(
      sizes, order,
      {.bucket_elements = elements(fill.bucket), .first_bucket_elements = elements(fill.first)});
}

Tuned tune(const std::vector<std::int64_t>& sizes, const std::vector<int>& order,
           const StepTimes& times, const LinkCost& link, const TuneOptions& options) {
  const bool forward = !times.needed.empty();
  const auto try_fill = [&](const Fill& fill) {
    Tuned tuned{fill, fill_buckets(sizes, order, fill), {}, ""};
    tuned.launches = order_launches(timed_buckets(tuned.assignment.buckets, sizes, times, link),
                                    times.backward, forward);
    return tuned;
  };
  const Tuned plain = try_fill(options.fill);
  Tuned best = plain;
  for (std::size_t bytes : kSizes) {
    if (options.fixed) break;
    Tuned other = try_fill({bytes, std::min(bytes, options.fill.first)});
    if (other.launches.exposed < kWorthwhile * best.launches.exposed) best = std::move(other);
  }
  double transfer = 0;
  for (const auto& timed : timed_buckets(best.assignment.buckets, sizes, times, link))
    transfer += timed.transfer;
  best.why = counted(best.assignment.buckets.size(), "bucket") + " of up to " + mib(best.fill) +
             ", " + ms(transfer) + " on the link (" + ms(link.latency) + " each and " +
             ms(link.element * 1e6 / sizeof(float)) + " a MB)" +
             (forward ? ", front layers first" : "") + ": " + ms(best.launches.exposed) +
             " should be exposed";
  if (!options.fixed)
    best.why += "; of " + mib(options.fill) + " it would be " + ms(plain.launches.exposed);
  return best;
}

}  // namespace weft::engine::internal
