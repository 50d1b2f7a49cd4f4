// Watches whether the steps of a run still take as long as planned, and says why not. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::train::internal {

// Seconds of a step. Of the parts, the mean over the ranks; of communication, that of the rank that
// waits least, so that a slow rank does not count as slow links.
struct StepParts {
  double step = 0;
  double data = 0, compute = 0, communication = 0, update = 0;
};

// One rank's means over some steps.
struct RankParts {
  StepParts parts;
  double waited = 0;  // Seconds of a step in which it waited for other ranks.
};

enum class Cause { kSlowRank, kLinks, kCompute, kData };
const char* to_string(Cause cause);

struct Departure {
  Cause cause = Cause::kCompute;
  int rank = -1;       // With kSlowRank.
  StepParts measured;  // Of the window.
  std::string text;    // "steps take 0.031 s, 48 % longer than planned: rank 1 is slow …".
};

// The mean over the ranks; the communication of the rank that waits least.
StepParts combined(const std::vector<RankParts>& ranks);
// The cause that explains most of the difference. A rank is slow if it is busy for 20 % longer than
// the mean of the others, and if this is at least half of the difference. `origin`: of the expected
// times, for the text.
Departure cause_of(const StepParts& expected, const std::vector<RankParts>& ranks,
                   const char* origin = "planned");

class PlanWatch {
 public:
  // Steps may differ from the plan by this share.
  static constexpr double kTolerance = 0.2;

  // The first window does not count: it warms up.
  explicit PlanWatch(StepParts expected) : expected_(expected) {}

  // Number of steps until add(): an eighth of a window by the plan, at least 20. The same on all
  // ranks.
  std::int64_t steps() const;
  // Adds the means of so many steps by rank. A window ends after two seconds, or 20 to 500 steps
  // that take as long by the plan. Two windows in a row must be outside of the tolerance. Says so
  // once, and expects the measured times from then on.
  std::optional<Departure> add(const std::vector<RankParts>& ranks, std::int64_t steps);
  const StepParts& expected() const { return expected_; }

 private:
  std::int64_t window() const;

  StepParts expected_;
  std::vector<RankParts> sums_;  // of the window so far
  std::int64_t count_ = 0;       // its steps
  std::int64_t windows_ = 0;
  int outside_ = 0;
  bool is_planned_ = true;  // False: expected_ was measured.
};

}  // namespace weft::train::internal
