#include "weft/observe/report/run_list.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/observe/run/run_folder.h"

namespace weft::observe {
namespace {

Config config() { return Config(Schema{{"train.batch", 64, "samples"}}); }

TEST(ListRuns, MarksARunningRun) {
  const TempDir parent;
  {
    RunFolder folder({.parent = parent.path(), .name = "a"}, config());
    folder.commit();
    EXPECT_TRUE(list_runs(parent.path()).at(0).running);
  }
  EXPECT_FALSE(list_runs(parent.path()).at(0).running);
}

TEST(ListRuns, ShowsTheStepLossesAndCheckpointOfEachRun) {
  const TempDir parent;
  RunFolder({.parent = parent.path(), .name = "new"}, config()).commit();
  {
    RunFolder folder({.parent = parent.path(), .name = "old"}, config());
    folder.commit();
    write_file_atomic(parent / "old/metrics.jsonl",
                      "{\"step\":7,\"epoch\":0,\"loss\":0.5}\n{\"step\":7,\"epoch\":0,\"accuracy\":"
                      "0.9,\"test_loss\":0.4}\n"
                      "{\"step\":8,\"epoch\":1,\"loss\":null}\n{\"step\":9,\"ep");
    for (const char* name : {"step-00000003", "step-00000007", ".tmp-step-00000009", "step-x"}) {
      make_directories(parent / ("old/ckpt/" + std::string(name)));
    }
  }
  make_directories(parent / "no-run");
  const auto an_hour_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(parent / "old/metrics.jsonl", an_hour_ago);
  const auto runs = list_runs(parent.path());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].name, "new");
  EXPECT_FALSE(runs[0].step || runs[0].loss || runs[0].checkpoint);
  EXPECT_EQ(runs[1].name, "old");
  EXPECT_EQ(runs[1].step, 8);
  EXPECT_EQ(runs[1].epoch, 1);
  ASSERT_TRUE(runs[1].loss);
  EXPECT_TRUE(std::isnan(*runs[1].loss));  // that of step 8
  EXPECT_EQ(runs[1].accuracy, 0.9);
  EXPECT_EQ(runs[1].test_loss, 0.4);
  EXPECT_EQ(runs[1].checkpoint, 7);
  EXPECT_THROW(list_runs(parent / "nowhere"), Error);
}

TEST(ReadRun, HasTheResultsOfAnEvaluationThatManyStepsFollow) {
  const TempDir parent;
  RunFolder folder({.parent = parent.path(), .name = "a"}, config());
  folder.commit();
  std::string text = "{\"step\":7,\"epoch\":0,\"accuracy\":0.9,\"top5\":0.99,\"test_loss\":0.4}\n";
  for (int step = 8; text.size() < (std::size_t{400} << 10); ++step)
    text += "{\"step\":" + std::to_string(step) + ",\"epoch\":1,\"loss\":0.25}\n";
  write_file_atomic(parent / "a/metrics.jsonl", text);
  const RunInfo run = read_run(parent / "a");
  EXPECT_EQ(run.loss, 0.25);
  EXPECT_EQ(run.epoch, 1);
  EXPECT_EQ(run.test_loss, 0.4);
  EXPECT_EQ(run.accuracy, 0.9);
  ASSERT_EQ(run.own.size(), 1u);
  EXPECT_EQ(run.own[0].first, "top5");
}

}  // namespace
}  // namespace weft::observe
