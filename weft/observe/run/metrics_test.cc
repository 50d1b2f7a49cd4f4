#include "weft/observe/run/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

#include "weft/base/error.h"

namespace weft::observe {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, ARecordIsAJsonObjectInTheGivenOrderWithNullForNanAndInfinity) {
  EXPECT_EQ(metrics_line(12, 1,
                         {{"loss", 0.5},
                          {"samples_per_s", 1e4},
                          {"a \"b\"", std::nan("")},
                          {"c", std::numeric_limits<double>::infinity()}}),
            "{\"step\":12,\"epoch\":1,\"loss\":0.5,\"samples_per_s\":10000,\"a "
            "\\\"b\\\"\":null,\"c\":null}\n");
  EXPECT_EQ(metrics_line(0, 0, {}), "{\"step\":0,\"epoch\":0}\n");
}

TEST(Metrics, AreWrittenToJsonLinesAtOnceAndToTheEventFileUnderTheirGroup) {
  const TempDir folder;
  Metrics metrics(folder.path());
  metrics.add("train", 1, 0, {{"loss", 0.5}});
  EXPECT_EQ(read_file(metrics.path(), 1000), "{\"step\":1,\"epoch\":0,\"loss\":0.5}\n");
  metrics.flush();
  EXPECT_THAT(read_file(metrics.event_path(), 1000), HasSubstr("train/loss"));
}

TEST(Metrics, ARecordWithoutValuesIsALineAndNoEvent) {
  const TempDir folder;
  Metrics metrics(folder.path());
  metrics.flush();
  const auto before = std::filesystem::file_size(metrics.event_path());
  metrics.add("train", 7, 1, {});
  metrics.flush();
  EXPECT_EQ(read_file(metrics.path(), 1000), "{\"step\":7,\"epoch\":1}\n");
  EXPECT_EQ(std::filesystem::file_size(metrics.event_path()), before);
}

TEST(Metrics, AResumedRunDropsRecordsAfterItsCheckpointAndStartsANewEventFile) {
  const TempDir folder;
  std::string first;
  {
    Metrics metrics(folder.path());
    for (int step = 1; step <= 3; ++step) metrics.add("train", step, 0, {{"loss", 1}});
    first = metrics.event_path();
    std::ofstream(metrics.path(), std::ios::app)
        << "{\"step\":1,\"epo";  // the run was killed during this write
  }
  Metrics metrics(folder.path(), 3);
  metrics.add("train", 3, 0, {{"loss", 2}});
  EXPECT_EQ(read_file(metrics.path(), 1000),
            "{\"step\":1,\"epoch\":0,\"loss\":1}\n{\"step\":2,\"epoch\":0,\"loss\":1}\n{\"step\":3,"
            "\"epoch\":0,\"loss\":2}\n");
  EXPECT_NE(metrics.event_path(), first);
}

// Ranks go on from copies in memory of step 1, and a checkpoint of step 2 exists.
TEST(Metrics, RecordsUpToTheNewestCheckpointStayAndAreNotRepeated) {
  const TempDir folder;
  const auto record = [](Metrics& metrics, int step, double loss) {
    metrics.add("train", step, 0, {{"loss", loss}});
  };
  {
    Metrics metrics(folder.path());
    for (int step = 1; step <= 3; ++step) record(metrics, step, 1);
  }
  Metrics metrics(folder.path(), 2, 2);
  for (int step = 2; step <= 3; ++step) record(metrics, step, 2);
  EXPECT_EQ(read_file(metrics.path(), 1000), metrics_line(1, 0, {{"loss", 1}}) +
                                                 metrics_line(2, 0, {{"loss", 1}}) +
                                                 metrics_line(3, 0, {{"loss", 2}}));
}

// Blocks of the file, lines of other programs, and lines longer than a block.
TEST(Metrics, AResumedRunFindsItsLastRecordInALongFile) {
  const TempDir folder;
  const std::string path = folder / "metrics.jsonl";
  const auto records = [](int from, int to) {
    std::string text;
    for (int step = from; step < to; ++step) text += metrics_line(step, 0, {{"loss", 0.25}});
    return text;
  };
  for (const int first : {1, 2, 4000, 9999, 10000, 20000}) {
    for (const std::string& other :
         {std::string(), std::string("\n\nother\n"), std::string(200'000, 'x') + "\n"}) {
      const std::string kept = records(1, 5000) + other + records(5000, 10000);
      std::ofstream(path, std::ios::trunc) << kept << other << "{\"step\":1,\"epo";
      const Metrics metrics(folder.path(), first);
      const std::string wanted = first <= 5000 ? records(1, first) : kept;
      EXPECT_EQ(read_file(path, 1 << 22).size(),
                first == 9999 ? kept.size() - records(9999, 10000).size() : wanted.size())
          << first;
    }
  }
}

TEST(Metrics, WriteTheStateOfEachRankAndIgnoreAMissingFolder) {
  const TempDir folder;
  const std::string run = folder / "run";
  std::filesystem::create_directory(run);
  Metrics metrics(run);
  const RankState ranks[] = {{.compute_ms = 2.5, .awaited_share = 0.4},
                             {.memory_bytes = 3e9, .sent_bytes = 4096, .waited_ms = 1.5}};
  metrics.write_ranks(7, ranks);
  EXPECT_EQ(
      read_file(run + "/ranks.json", 1000),
      "{\"step\":7,\"ranks\":[{\"rank\":0,\"compute_ms\":2.5,\"memory_bytes\":0,\"sent_bytes\":0,"
      "\"shared_bytes\":0,\"waited_ms\":0,\"awaited_share\":0.4},{\"rank\":1,\"compute_ms\":0,"
      "\"memory_bytes\":3e+09,\"sent_bytes\":4096,\"shared_bytes\":0,\"waited_ms\":1.5,"
      "\"awaited_share\":0}]}\n");
  std::filesystem::remove_all(run);
  metrics.write_ranks(8, ranks);
  EXPECT_FALSE(std::filesystem::exists(run));
}

// The disk is full after half of a record, and has space again later.
TEST(Metrics, LoseWholeRecordsWhileTheDiskIsFull) {
  const TempDir folder;
  std::string events;
  {
    Metrics metrics(folder.path());
    metrics.add("train", 1, 0, {{"loss", 1}});
    metrics.flush();
    events = read_file(metrics.event_path(), 10000);
    rlimit usual{};
    ::getrlimit(RLIMIT_FSIZE, &usual);
    rlimit full = usual;
    full.rlim_cur = std::filesystem::file_size(metrics.path()) + 9;
    const auto before = std::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &full);
    metrics.add("train", 2, 0, {{"loss", 2}});
    metrics.flush();
    ::setrlimit(RLIMIT_FSIZE, &usual);
    std::signal(SIGXFSZ, before);
    metrics.add("train", 3, 0, {{"loss", 3}});
    EXPECT_EQ(read_file(metrics.path(), 1000),
              "{\"step\":1,\"epoch\":0,\"loss\":1}\n{\"step\":3,\"epoch\":0,\"loss\":3}\n");
    metrics.flush();
    const std::string now = read_file(metrics.event_path(), 10000);
    EXPECT_TRUE(now.starts_with(events));
    EXPECT_EQ(now.size() - events.size(),
              tf_record(scalar_event(0, 3, {{"train/loss", 3}})).size());
  }
}

TEST(Metrics, AMissingFolderIsAnErrorThatNamesThePath) {
  try {
    Metrics metrics("/nonexistent");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "cannot open /nonexistent/metrics.jsonl: No such file or directory");
  }
}

}  // namespace
}  // namespace weft::observe
