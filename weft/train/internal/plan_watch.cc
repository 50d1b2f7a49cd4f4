#include "weft/train/internal/plan_watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace weft::train::internal {
namespace {

constexpr double kWindowSeconds = 2;
constexpr std::int64_t kMinWindow = 20, kMaxWindow = 500;
constexpr std::int64_t kLooks = 8;  // In a window by the plan.
constexpr int kAgree = 2;           // Windows in a row.

double busy(const RankParts& rank) { return std::max(0.0, rank.parts.step - rank.waited); }

std::string line(const StepParts& measured, const StepParts& expected, const char* origin) {
  const double more = 100 * (measured.step / expected.step - 1);
  char text[96];
  std::snprintf(text, sizeof text, "steps take %.3g s, %.0f %% %s than %s: ", measured.step,
                std::fabs(more), more < 0 ? "shorter" : "longer", origin);
  return text;
}

void add_to(RankParts& sum, const RankParts& one, double times) {
  sum.parts.step += times * one.parts.step;
  sum.parts.data += times * one.parts.data;
  sum.parts.compute += times * one.parts.compute;
  sum.parts.communication += times * one.parts.communication;
  sum.parts.update += times * one.parts.update;
  sum.waited += times * one.waited;
}

// The rank that is busy for longest, if it is much busier than the mean of the others, and this
// explains at least half of what steps take longer.
int slow_rank(const std::vector<RankParts>& ranks, double longer) {
  if (ranks.size() < 2) return -1;
  double sum = 0;
  std::size_t most = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    sum += busy(ranks[r]);
    if (busy(ranks[r]) > busy(ranks[most])) most = r;
  }
  const double others = (sum - busy(ranks[most])) / static_cast<double>(ranks.size() - 1);
  const double more = busy(ranks[most]) - others;
  return more > PlanWatch::kTolerance * others && more > longer / 2 ? static_cast<int>(most) : -1;
}

std::string times(double measured, double expected) {
  char text[64];
  if (expected <= 0) {
    std::snprintf(text, sizeof text, "%.3g s", measured);
  } else {
    std::snprintf(text, sizeof text, "%.3g s instead of %.3g s", measured, expected);
  }
  return text;
}

}  // namespace

const char* to_string(Cause cause) {
  switch (cause) {
    case Cause::kSlowRank: return "slow rank";
    case Cause::kLinks: return "links";
    case Cause::kCompute: return "computation";
    case Cause::kData: return "data loading";
  }
  return "computation";
}

StepParts combined(const std::vector<RankParts>& ranks) {
  StepParts mean;
  const auto count = static_cast<double>(std::max<std::size_t>(1, ranks.size()));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const StepParts& one = ranks[r].parts;
    mean.step += one.step / count;
    mean.data += one.data / count;
    mean.compute += one.compute / count;
    mean.update += one.update / count;
    mean.communication =
        r == 0 ? one.communication : std::min(mean.communication, one.communication);
  }
  return mean;
}

Departure cause_of(const StepParts& expected, const std::vector<RankParts>& ranks,
                   const char* origin) {
  Departure departure;
  departure.measured = combined(ranks);
  const StepParts& now = departure.measured;
  const double longer = now.step - expected.step;
  const int slow = longer > 0 ? slow_rank(ranks, longer) : -1;
  std::string why;
  if (slow >= 0) {
    departure.cause = Cause::kSlowRank;
    departure.rank = slow;
    char text[96];
    std::snprintf(text, sizeof text, "rank %d is slow: it is busy for %.3g s of a step", slow,
                  busy(ranks[static_cast<std::size_t>(slow)]));
    why = text;
  } else {
    const double sign = now.step > expected.step ? 1 : -1;
    const double links = now.communication + now.update,
                 planned_links = expected.communication + expected.update;
    const double by_data = sign * (now.data - expected.data),
                 by_compute = sign * (now.compute - expected.compute),
                 by_links = sign * (links - planned_links);
    const std::string speed = sign > 0 ? "slower " : "faster ";
    if (by_data >= by_compute && by_data >= by_links) {
      departure.cause = Cause::kData;
      why = speed + "data loading, " + times(now.data, expected.data);
    } else if (by_links >= by_compute) {
      departure.cause = Cause::kLinks;
      why = speed + "links: gradients and optimizer take " + times(links, planned_links);
    } else {
      departure.cause = Cause::kCompute;
      why = speed + "computation, " + times(now.compute, expected.compute);
    }
  }
  departure.text = line(now, expected, origin) + why;
  return departure;
}

std::int64_t PlanWatch::window() const {
  if (!(expected_.step > 0)) return kMaxWindow;  // Also NaN.
  const double steps = kWindowSeconds / expected_.step;
  return steps >= static_cast<double>(kMaxWindow)
             ? kMaxWindow
             : std::max(kMinWindow, static_cast<std::int64_t>(steps));
}

std::int64_t PlanWatch::steps() const { return std::max(kMinWindow, window() / kLooks); }

std::optional<Departure> PlanWatch::add(const std::vector<RankParts>& ranks, std::int64_t steps) {
  sums_.resize(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r)
    add_to(sums_[r], ranks[r], static_cast<double>(steps));
  count_ += steps;
  if (count_ < window() && combined(sums_).step < kWindowSeconds) return std::nullopt;
  std::vector<RankParts> means(sums_.size());
  for (std::size_t r = 0; r < means.size(); ++r)
    add_to(means[r], sums_[r], 1.0 / static_cast<double>(count_));
  sums_.clear();
  count_ = 0;
  if (windows_++ == 0 || !(expected_.step > 0) || means.empty()) return std::nullopt;
  const double ratio = combined(means).step / expected_.step;
  const bool outside = !(ratio > 1 - kTolerance && ratio < 1 + kTolerance);
  outside_ = outside ? outside_ + 1 : 0;
  if (outside_ < kAgree) return std::nullopt;
  outside_ = 0;
  Departure departure = cause_of(expected_, means, is_planned_ ? "planned" : "before");
  expected_ = departure.measured;
  is_planned_ = false;
  return departure;
}

}  // namespace weft::train::internal
