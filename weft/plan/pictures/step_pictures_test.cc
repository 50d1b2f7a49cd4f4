// The charts of a step, and the page that holds them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "weft/plan/cluster/catalog.h"
#include "weft/plan/pictures/step_page.h"

namespace weft::plan {
namespace step_pictures_test {

using testing::HasSubstr;

// One rank that computes for a second.
Step one_rank() {
  Step step;
  step.schedule.actions.emplace_back(1);
  step.timing.spans.emplace_back(1, schedule::pipeline::Span{0, 1});
  step.memory.resize(1);
  step.capacity.push_back(80 * kGiB);
  return step;
}

// Of the three seconds of sharding, one is in the passes.
TEST(Timeline, ShowsAllThatFollowsTheLastBackward) {
  Step step = one_rank();
  step.parts.gradients = 1;
  step.parts.sharding = 3;
  step.parts.sharding_after = 2;
  step.parts.optimizer = 1;
  const std::string svg = timeline_svg(step);
  EXPECT_THAT(svg, HasSubstr("gradients and shards, 3 s"));
  EXPECT_THAT(svg, HasSubstr("optimizer, 1 s"));
  EXPECT_THAT(svg, HasSubstr(">5 s</text>"));
}

TEST(PlanPage, HasTheMeshOfMoreThanAThousandNodes) {
  PlanPage page{.title = "plan", .recipe = "[train]"};
  page.job.cluster = cluster_of_accelerator("V100 PCIe 32GB", 1100, 1);
  page.job.layout.dp = 1100;
  page.found.best.push_back({.layout = page.job.layout, .step = one_rank()});
  const std::string html = plan_page(page);
  EXPECT_THAT(html, HasSubstr("1100 ranks: dp 1100"));
  EXPECT_THAT(html, HasSubstr("same weights, other samples; travels between hosts"));
}

}  // namespace step_pictures_test
}  // namespace weft::plan
