#include "weft/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Returns what a function writes to stderr, and restores the log's settings afterwards.
template <class Code>
std::string stderr_of(Code code) {
  testing::internal::CaptureStderr();
  code();
  set_log_level(LogLevel::kInfo);
  set_rank(0, 1);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, ShowsTheRankOnlyIfThereAreSeveral) {
  EXPECT_EQ(stderr_of([] {
              log_info("ready", {{"port", 29500}, {"host", "here"}, {"ok", true}, {"lr", 0.5}});
            }),
            "ready port=29500 host=\"here\" ok=true lr=0.5\n");
  EXPECT_EQ(stderr_of([] {
              set_rank(0, 2);
              log_info("ready");
            }),
            "[rank 0] ready\n");
}

TEST(Log, ShortensFractionsForPeopleAndKeepsTheirDigitsInTheFile) {
  const TempDir folder;
  EXPECT_EQ(stderr_of([&] {
              attach_log_file(folder / "log.jsonl");
              log_info("a", {{"rate", 1.0 / 3}, {"tiny", 1e-9 / 3}, {"count", 12345678}});
              log_info("b", {{"half", 0.5}, {"many", 1234567.5}, {"text", "0.33333333333"}});
              detach_log_file();
            }),
            "a rate=0.333333 tiny=3.33333e-10 count=12345678\n"
            "b half=0.5 many=1234567.5 text=\"0.33333333333\"\n");
  EXPECT_THAT(read_file(folder / "log.jsonl", 10000), HasSubstr("\"rate\":0.3333333333333333,"));
}

TEST(Log, PrintsInformationOfRankZeroOnlyButWarningsAndErrorsOfAllRanks) {
  EXPECT_EQ(stderr_of([] {
              set_rank(1, 2);
              log_debug("a");
              log_info("b");
              log_warn("c");
              log_error("d");
            }),
            "[rank 1] warning: c\n[rank 1] error: d\n");
}

TEST(Log, PrintsEverythingOfEveryRankAtLevelDebug) {
  EXPECT_EQ(stderr_of([] {
              set_rank(1, 2);
              set_log_level(LogLevel::kDebug);
              log_debug("a");
              log_info("b");
            }),
            "[rank 1] debug: a\n[rank 1] b\n");
}

TEST(Log, OmitsLinesBelowTheLevel) {
  EXPECT_EQ(stderr_of([] {
              set_log_level(LogLevel::kError);
              log_warn("no");
              log_error("yes");
              set_log_level(LogLevel::kOff);
              log_error("no");
            }),
            "error: yes\n");
}

TEST(Log, ThreadsLogWithTheirOwnRank) {
  EXPECT_EQ(stderr_of([] {
              std::thread([] {
                const ThreadRank outer(3, 4);
                {
                  const ThreadRank inner(5, 8);
                  log_warn("early");
                }
                log_warn("late");
              }).join();
              log_warn("alone");
            }),
            "[rank 5] warning: early\n[rank 3] warning: late\nwarning: alone\n");
}

TEST(Log, NoMessageBreaksTheLineOrControlsTheTerminal) {
  EXPECT_EQ(stderr_of([] { log_info("peer said\r\n\x1b[2Jhello"); }), "peer said   [2Jhello\n");
}

TEST(Log, WipesAStatusLineAndDrawsItAgain) {
  EXPECT_EQ(stderr_of([] {
              set_status_line("\r|##|", 4);
              log_info("x");
              set_status_line("", 0);
              log_info("y");
            }),
            "\r    \rx\n\r|##|y\n");
}

TEST(Log, WritesJsonLinesOfEveryRankIntoTheAttachedFile) {
  const TempDir folder;
  stderr_of([&] {
    attach_log_file(folder / "log.jsonl");
    set_rank(1, 2);
    log_info("epoch \"1\"\n", {{"loss", 0.25}, {"bad", std::nan("")}, {"peer", -1}});
    log_debug("not at this level");
    detach_log_file();
    log_warn("not in the file");
  });
  const std::string text = read_file(folder / "log.jsonl", 10000);
  EXPECT_THAT(text, MatchesRegex("\\{\"ts\":\"20[0-9]+-[0-9]+-[0-9]+T[0-9:]+\\."
                                 "[0-9]+Z\",\"level\":\"info\",\"rank\":1,"
                                 "\"message\":\"epoch "
                                 "\\\\\"1\\\\\"\\\\n\",\"fields\":\\{\"loss\":"
                                 "0.25,\"bad\":null,\"peer\":-1\\}\\}\n"));
}

TEST(Log, LinesOfSeveralThreadsDoNotMix) {
  const TempDir folder;
  attach_log_file(folder / "log.jsonl");
  const auto out = stderr_of([] {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([rank] {
        const ThreadRank me(rank, 4);
        for (int i = 0; i < 200; ++i) log_warn("aaaaaaaaaaaaaaaaaaaa", {{"i", i}});
      });
    }
    for (auto& thread : threads) thread.join();
  });
  detach_log_file();
  std::istringstream lines(out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_THAT(line, MatchesRegex("\\[rank [0-3]\\] warning: a+ i=[0-9]+"));
  EXPECT_EQ(count, 800);
  std::ifstream file(folder / "log.jsonl");
  count = 0;
  for (std::string line; std::getline(file, line); ++count)
    EXPECT_TRUE(line.starts_with("{\"ts\"") && line.ends_with("}}")) << line;
  EXPECT_EQ(count, 800);
}

TEST(Log, ThrowsWithTheNameOfAFileThatCannotBeOpened) {
  try {
    attach_log_file("/nonexistent/log.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("/nonexistent/log.jsonl: No such file"));
  }
}

TEST(Log, ParsesItsOwnLevelNamesAndTorchs) {
  EXPECT_EQ(parse_log_level("DEBUG"), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("warning"), LogLevel::kWarn);
  EXPECT_EQ(parse_log_level("FATAL"), LogLevel::kError);
  EXPECT_EQ(parse_log_level("0"), LogLevel::kInfo);
  EXPECT_EQ(parse_log_level("off"), LogLevel::kOff);
  EXPECT_EQ(parse_log_level("loud"), std::nullopt);
  EXPECT_EQ(parse_log_level(""), std::nullopt);
}

// The environment is read once in a process, so a new process is needed: gtest's death tests start
// the binary again.
void log_all_and_leave() {
  log_debug("a");
  log_info("b");
  log_warn("c");
  _exit(0);
}

TEST(LogEnvironment, OwnVariableOverridesTorchsAndAnUnknownValueIsReportedOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ::setenv("TORCH_CPP_LOG_LEVEL", "WARNING", 1);
  EXPECT_EXIT(log_all_and_leave(), testing::ExitedWithCode(0), "^warning: c\n$");
  ::setenv("WEFT_LOG_LEVEL", "debug", 1);
  EXPECT_EXIT(log_all_and_leave(), testing::ExitedWithCode(0), "^debug: a\nb\nwarning: c\n$");
  ::unsetenv("TORCH_CPP_LOG_LEVEL");
  ::setenv("WEFT_LOG_LEVEL", "loud", 1);
  EXPECT_EXIT(log_all_and_leave(), testing::ExitedWithCode(0),
              "^warning: WEFT_LOG_LEVEL=loud is not a log "
              "level[^\n]*\nb\nwarning: c\n$");
  ::unsetenv("WEFT_LOG_LEVEL");
}

TEST(Text, WritesBytesAndClocksForPeople) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(1048575), "1.0 MiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16.0 EiB");
  EXPECT_EQ(format_clock(0), "00:00");
  EXPECT_EQ(format_clock(725.9), "12:05");
  EXPECT_EQ(format_clock(3723), "1:02:03");
  EXPECT_EQ(format_clock(-1), "?");
  EXPECT_EQ(format_clock(std::nan("")), "?");
}

}  // namespace
}  // namespace weft
