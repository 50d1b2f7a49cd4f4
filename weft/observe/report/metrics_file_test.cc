#include "weft/observe/report/metrics_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "weft/base/file.h"

namespace weft::observe {
namespace metrics_file_test {

void append(const std::string& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text;
}

TEST(MetricsFollower, ReadsOnlyNewAndCompleteLines) {
  const TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  MetricsFollower follower(file);
  EXPECT_TRUE(follower.update().empty());
  append(file, "{\"step\":1,\"loss\":4}\n{\"step\":2,\"lo");
  EXPECT_EQ(follower.update().at("loss").size(), 1u);
  append(file, "ss\":3}\n");
  ASSERT_EQ(follower.update().at("loss").size(), 2u);
  EXPECT_EQ(follower.update().at("loss").back().value, 3);
}

TEST(MetricsFollower, RereadsTheFileIfAResumedRunHasDroppedRecords) {
  const TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  append(file, "{\"step\":1,\"loss\":4}\n{\"step\":2,\"loss\":3}\n");
  MetricsFollower follower(file);
  EXPECT_EQ(follower.update().at("loss").size(), 2u);
  write_file_atomic(file, "{\"step\":1,\"loss\":4}\n");
  EXPECT_EQ(follower.update().at("loss").size(), 1u);
}

TEST(MetricsFollower, KeepsEverySecondPointOfALongSeries) {
  const TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  for (int step = 1; step <= 8; ++step)
    append(file, "{\"step\":" + std::to_string(step) + ",\"loss\":1}\n");
  MetricsFollower follower(file, 8);
  const auto& loss = follower.update().at("loss");
  ASSERT_EQ(loss.size(), 4u);
  EXPECT_EQ(loss[0].step, 2);
  EXPECT_EQ(loss[3].step, 8);
}

}  // namespace metrics_file_test
}  // namespace weft::observe
