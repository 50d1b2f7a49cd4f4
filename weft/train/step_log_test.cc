#include "weft/train/internal/step_log.h"

#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/comm/replicate.h"
#include "weft/observe/report/metrics_file.h"

namespace weft::train::internal {
namespace step_log_test {

// The last slowest_over_median of ranks that take these times to compute.
double slowest_over_median(const std::vector<double>& ms) {
  const TempDir folder;
  replicate(static_cast<int>(ms.size()), [&](const Group& world) {
    std::optional<observe::Metrics> metrics;
    if (world.rank() == 0) metrics.emplace(folder.path());
    StepLog log(world, metrics ? &*metrics : nullptr, {});
    StepLog::Step step{.step = 1, .samples = 1, .seconds = 1, .ms = {}, .losses = {1}};
    step.ms[static_cast<std::size_t>(observe::Phase::kForward)] =
        ms[static_cast<std::size_t>(world.rank())];
    log.add(step);
    log.reduce(0, {});
  });
  return observe::read_metrics(folder / "metrics.jsonl").at("slowest_over_median").back().value;
}

TEST(StepLog, TheMedianOfAnEvenNumberOfRanksIsBetweenTheTwoInTheMiddle) {
  EXPECT_DOUBLE_EQ(slowest_over_median({10, 20}), 20 / 15.0);
  EXPECT_DOUBLE_EQ(slowest_over_median({40, 10, 30, 20}), 40 / 25.0);
  EXPECT_DOUBLE_EQ(slowest_over_median({10, 40, 20}), 2);
}

}  // namespace step_log_test
}  // namespace weft::train::internal
