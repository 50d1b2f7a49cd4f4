#include "tests/chaos/schedule.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::chaos {
namespace {

// A fault with a duration ends before the next one is due, but lasts so long at least.
constexpr double kShortest_s = 0.2;
// About as long as a recovery.
constexpr double kRecovery_s = 0.5;
// Streams of the random numbers.
constexpr std::uint32_t kSteps = 1, kTimes = 2;

double between(Random& numbers, double low, double high) {
  return low + (high - low) * numbers.uniform();
}

// The launcher counts a rank as lost when it is stopped for 1.5 s, and TCP gives a silent peer up
// after 10 s.
double duration_of(FaultKind kind, Random& numbers) {
  switch (kind) {
    case FaultKind::kPause: return between(numbers, 0.05, 1.0);
    case FaultKind::kSlow: return between(numbers, 2, 5);
    case FaultKind::kDiskFull: return between(numbers, 0.5, 2);
    case FaultKind::kPartition: return between(numbers, 0.5, 5);
    default: return 0;
  }
}

Fault random_fault(FaultKind kind, const ScheduleOptions& options, Random& numbers) {
  Fault fault{.kind = kind};
  const int victims = kind == FaultKind::kPartition ? options.hosts : options.ranks;
  fault.victim = static_cast<int>(numbers.below(static_cast<std::uint64_t>(victims)));
  fault.lasts_s = duration_of(kind, numbers);
  return fault;
}

// Each kind once, and then random ones, in a random order.
std::vector<FaultKind> random_kinds(const ScheduleOptions& options, int count, Random& numbers) {
  std::vector<FaultKind> kinds;
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    kinds.push_back(
        options.kinds[at < options.kinds.size() ? at : numbers.below(options.kinds.size())]);
  }
  for (std::size_t left = kinds.size(); left > 1; --left)
    std::swap(kinds[left - 1], kinds[numbers.below(left)]);
  return kinds;
}

void make_failpoint(Fault& fault, std::set<int>& lost, const ScheduleOptions& options,
                    Random& numbers) {
  static constexpr const char* kPlaces[] = {"step.begin", "update.begin", "update.middle",
                                            "copy.middle"};
  std::vector<int> left;
  for (int rank = 0; rank < options.ranks; ++rank) {
    if (!lost.contains(rank)) left.push_back(rank);
  }
  if (left.empty()) {
    fault.kind = FaultKind::kKill;
    return;
  }
  fault.victim = left[numbers.below(left.size())];
  fault.failpoint = std::string(kPlaces[numbers.below(std::size(kPlaces))]) +
                    ":rank=" + std::to_string(fault.victim) +
                    ":step=" + std::to_string(fault.after_step + 1);
}

}  // namespace

std::vector<Fault> faults_at_steps(const ScheduleOptions& options, const StepsOptions& steps) {
  const std::int64_t room = steps.last - steps.first + 1;
  WEFT_REQUIRE(steps.count >= 0 && room >= steps.count,
               "there are " + std::to_string(std::max<std::int64_t>(0, room)) + " steps for " +
                   std::to_string(steps.count) + " faults; train for more steps");
  Random numbers(options.seed, kSteps);
  std::set<std::int64_t> at;
  while (static_cast<int>(at.size()) < steps.count)
    at.insert(steps.first +
              static_cast<std::int64_t>(numbers.below(static_cast<std::uint64_t>(room))));
  const auto kinds = random_kinds(options, steps.count, numbers);
  std::vector<Fault> faults;
  std::set<int> lost;
  for (const std::int64_t step : at) {
    Fault fault = random_fault(kinds[faults.size()], options, numbers);
    fault.after_step = step;
    fault.delay_s = between(numbers, 0, 1.5 * steps.step_s);
    const auto next = at.upper_bound(step);
    const auto until_s = [&](std::int64_t end) {
      return static_cast<double>(end - step) * steps.step_s;
    };
    const double gap_s = until_s(next == at.end() ? steps.end : *next);
    fault.lasts_s =
        std::min({fault.lasts_s, until_s(steps.end) / 2, std::max(kShortest_s, gap_s / 2)});
    if (fault.kind == FaultKind::kFailpoint) make_failpoint(fault, lost, options, numbers);
    if (options.overlap && faults.size() % 2 == 1 && fault.kind != FaultKind::kFailpoint) {
      fault.after_step = -1;
      fault.delay_s = between(numbers, 0, kRecovery_s);
    }
    if (loses_a_rank(fault.kind)) lost.insert(fault.victim);
    faults.push_back(std::move(fault));
  }
  return faults;
}

std::vector<Fault> faults_at_times(const ScheduleOptions& options, double mean_s, double total_s) {
  WEFT_REQUIRE(mean_s > 0 && total_s > 0, "the mean and the duration must be greater than 0");
  WEFT_REQUIRE(std::find(options.kinds.begin(), options.kinds.end(), FaultKind::kFailpoint) ==
                   options.kinds.end(),
               "failpoints happen at steps; give a number of faults instead of a mean time");
  Random numbers(options.seed, kTimes);
  std::vector<Fault> faults;
  for (double at = 0;;) {
    const double gap = -mean_s * std::log1p(-numbers.uniform());
    const FaultKind kind = options.kinds[numbers.below(options.kinds.size())];
    Fault fault = random_fault(kind, options, numbers);
    fault.delay_s = gap;
    if ((at += gap) >= total_s) return faults;
    faults.push_back(std::move(fault));
  }
}

std::vector<int> divide(int count, int jobs) {
  std::vector<int> parts;
  for (int job = 0; job < jobs; ++job)
    parts.push_back(count * (job + 1) / jobs - count * job / jobs);
  return parts;
}

}  // namespace weft::chaos
