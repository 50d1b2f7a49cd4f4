#include "weft/observe/report/metrics_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "weft/base/file.h"

namespace weft::observe {
namespace metrics_file_test {

void append(const std::string& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text;
}

TEST(Median, OfAnEvenNumberOfValuesIsBetweenTheTwoInTheMiddle) {
  EXPECT_EQ(median({{1, 40}, {2, 10}, {3, 30}, {4, 20}}), 25);
  EXPECT_EQ(median({{1, 40}, {2, 10}, {3, 30}}), 30);
  EXPECT_EQ(median({{1, 40}, {2, 10}}), 25);
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

TEST(MetricsFollower, HasNaNWhereARecordHasNull) {
  const TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  MetricsFollower follower(file);
  append(file, "{\"step\":1,\"loss\":4,\"lr\":0.1}\n{\"step\":2,\"loss\":null,\"lr\":0.1}\n");
  ASSERT_EQ(follower.update().at("loss").size(), 2u);
  EXPECT_EQ(follower.update().at("loss")[0].value, 4);
  EXPECT_TRUE(std::isnan(follower.update().at("loss")[1].value));
  EXPECT_EQ(follower.update().at("lr")[1].value, 0.1);
  append(file, "{\"step\":3,\"loss\":3}\n");
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

// Between two calls, a rank was lost, and its successor has written more than was dropped.
TEST(MetricsFollower, RereadsTheFileIfItsDroppedRecordsWereReplacedByMore) {
  const TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  const auto record = [](int step, int loss) {
    return "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(loss) + "}\n";
  };
  append(file, record(1, 4) + record(2, 3) + record(3, 2));
  MetricsFollower follower(file);
  EXPECT_EQ(follower.update().at("loss").size(), 3u);
  std::filesystem::resize_file(file, record(1, 4).size());
  for (int step = 2; step <= 5; ++step) append(file, record(step, 9 - step));
  const auto& loss = follower.update().at("loss");
  ASSERT_EQ(loss.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(loss[i].step, static_cast<double>(i + 1));
  EXPECT_EQ(loss[2].value, 6);
}

// The points of a series of so many steps that a follower with room for 8 keeps.
auto kept_of(int steps) {
  const TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  for (int step = 1; step <= steps; ++step)
    append(file, "{\"step\":" + std::to_string(step) + ",\"loss\":1}\n");
  MetricsFollower follower(file, 8);
  return follower.update().at("loss");
}

TEST(MetricsFollower, KeepsTheNewestPointOfALongSeries) {
  const auto loss = kept_of(9);
  ASSERT_EQ(loss.size(), 5u);
  EXPECT_EQ(loss[0].step, 2);
  EXPECT_EQ(loss[4].step, 9);
}

TEST(MetricsFollower, KeepsEverySecondPointOfALongSeries) {
  const auto loss = kept_of(8);
  ASSERT_EQ(loss.size(), 4u);
  EXPECT_EQ(loss[0].step, 2);
  EXPECT_EQ(loss[3].step, 8);
}

// Of both halves of the run, it keeps points of the same share of the records.
TEST(MetricsFollower, KeepsTheMedianOfALongSeries) {
  const TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  MetricsFollower follower(file, 8);
  for (int step = 1; step <= 27; ++step) {
    append(file, "{\"step\":" + std::to_string(step) +
                     (step <= 16 ? ",\"loss\":1}\n" : ",\"loss\":2}\n"));
    follower.update();
  }
  std::vector<double> steps;
  for (const auto& point : follower.update().at("loss")) steps.push_back(point.step);
  EXPECT_EQ(steps, (std::vector<double>{4, 8, 12, 16, 20, 24, 27}));
  EXPECT_EQ(median(follower.update().at("loss")), 1);
}

TEST(Median, LeavesOutNaN) {
  EXPECT_EQ(median({{1, 5}, {2, 1}, {3, std::nan("")}, {4, 3}}), 3);
  EXPECT_TRUE(std::isnan(median({{1, std::nan("")}})));
}

// The evaluation is several blocks before the end. The text of its name is in another place, too.
TEST(LastRecordWith, IsFoundFarFromTheEnd) {
  const TempDir dir;
  const std::string file = dir / "metrics.jsonl";
  const std::string step = "{\"step\":8,\"epoch\":0,\"loss\":0.5}\n",
                    decoy = "{\"step\":9,\"note\":\"test_loss\"}\n";
  std::string text = "{\"step\":3,\"test_loss\":2}\n{\"step\":7,\"test_loss\":1,\"f1\":0.5}\n";
  while (text.size() < (std::size_t{5} << 19)) text += step;
  append(file, text + decoy + "{\"step\":9,\"test_lo");
  const auto found = last_record_with(file, "test_loss");
  ASSERT_TRUE(found.contains("test_loss"));
  EXPECT_EQ(found.at("test_loss")[0].step, 7);
  EXPECT_EQ(found.at("f1")[0].value, 0.5);
  EXPECT_TRUE(last_record_with(file, "accuracy").empty());
  EXPECT_TRUE(last_record_with(dir / "nothing", "test_loss").empty());
}

}  // namespace metrics_file_test
}  // namespace weft::observe
