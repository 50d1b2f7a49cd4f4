#include "weft/launch/internal/node_reports.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace weft::launch::internal {
namespace {

Situation of_node_1() {
  const Time now = std::chrono::steady_clock::now();
  Situation mine;
  mine.first_rank = 2;
  mine.ranks = {RankEnd{{true, SIGKILL}, now, Cause{"Timeout: \xff", Errc::kTimeout, 1}, true},
                std::nullopt};
  mine.stopped = {1};
  return mine;
}

Situation whole() {
  Situation whole;
  whole.ranks.assign(4, std::nullopt);
  return whole;
}

TEST(NodeReports, SurviveTheWayAsText) {
  const Situation mine = of_node_1();
  Situation all = whole();
  add_text(to_text(mine), all);
  EXPECT_FALSE(all.ranks[0] || all.ranks[1] || all.ranks[3]);
  ASSERT_TRUE(all.ranks[2]);
  const RankEnd& end = *all.ranks[2];
  EXPECT_TRUE(end.status.signaled);
  EXPECT_EQ(end.status.value, SIGKILL);
  EXPECT_TRUE(end.told);
  ASSERT_TRUE(end.cause);
  EXPECT_EQ(end.cause->code, Errc::kTimeout);
  EXPECT_EQ(end.cause->peer, 1);
  EXPECT_LT(std::chrono::abs(end.when - mine.ranks[0]->when), std::chrono::seconds(1));
  EXPECT_EQ(all.stopped, std::set<int>{3});
}

TEST(NodeReports, LeaveTheRanksUnknownIfTheTextIsNotAReport) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string(R"({"first_rank": 0})"),
        std::string(R"({"first_rank": 4, "ranks": [{}], "stopped": []})"),
        std::string(R"({"first_rank": -1, "ranks": [{"signaled": 1}], "stopped": []})")}) {
    Situation all = whole();
    add_text(text, all);
    for (const auto& end : all.ranks) EXPECT_FALSE(end) << text;
  }
}

}  // namespace
}  // namespace weft::launch::internal
