#include "weft/observe/run/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <stop_token>
#include <thread>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"

namespace weft::observe {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Config config() { return Config(Schema{{"train.batch", 64, "samples"}}); }

std::string error_of(const RunFolderOptions& options) {
  try {
    RunFolder folder(options, config());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.message();
  }
  return "no error";
}

TEST(RunFolder, HoldsTheConfigurationTheLogAndAFolderForCheckpoints) {
  const TempDir parent;
  {
    RunFolder folder({.parent = parent / "runs", .name = "a"}, config());
    folder.commit();
    EXPECT_EQ(folder.path(), parent / "runs/a");
    EXPECT_EQ(read_file(folder.config_path(), 1000), "[train]\nbatch = 64\n");
    EXPECT_TRUE(std::filesystem::is_directory(folder.checkpoint_path()));
    testing::internal::CaptureStderr();
    log_info("hello");
    testing::internal::GetCapturedStderr();
  }
  testing::internal::CaptureStderr();
  log_info("after the run");
  testing::internal::GetCapturedStderr();
  EXPECT_THAT(read_file(parent / "runs/a/log.jsonl", 1000), HasSubstr("\"message\":\"hello\""));
  EXPECT_THAT(read_file(parent / "runs/a/log.jsonl", 1000),
              testing::Not(HasSubstr("after the run")));
}

TEST(RunFolder, RefusesAFolderThatHoldsARunUnlessResuming) {
  const TempDir parent;
  RunFolder({.parent = parent.path(), .name = "a"}, config()).commit();
  EXPECT_EQ(error_of({.parent = parent.path(), .name = "a"}),
            "the run folder " + (parent / "a") + " is not empty; choose another name, or resume");
  EXPECT_EQ(error_of({.parent = parent.path(), .name = "a", .resume = true}), "no error");
  EXPECT_EQ(error_of({.parent = parent.path(), .name = "b", .resume = true}),
            "there is no run to resume in " + (parent / "b"));
  make_directories(parent / "empty");
  EXPECT_EQ(error_of({.parent = parent.path(), .name = "empty"}), "no error");
}

TEST(RunFolder, GivesRunsThatStartInTheSameSecondSeparateFolders) {
  const TempDir parent;
  std::set<std::string> paths;
  for (int run = 0; run < 5; ++run) {
    RunFolder folder({.parent = parent / "runs", .recipe = "mnist"}, config());
    folder.commit();
    paths.insert(folder.path());
  }
  EXPECT_EQ(paths.size(), 5u);
  for (const auto& path : paths) EXPECT_THAT(path, MatchesRegex(".*/[0-9-]+-mnist"));
}

TEST(RunFolder, IsRemovedIfTheRunFailsToStart) {
  const TempDir parent;
  { const RunFolder folder({.parent = parent.path(), .name = "a"}, config()); }
  EXPECT_FALSE(std::filesystem::exists(parent / "a"));
  RunFolder({.parent = parent.path(), .name = "a"}, config()).commit();
  { const RunFolder resumed({.parent = parent.path(), .name = "a", .resume = true}, config()); }
  EXPECT_TRUE(std::filesystem::exists(parent / "a/config.toml")) << "a resumed run stays";
}

// The next resume would take the values of one that was refused.
TEST(RunFolder, KeepsTheConfigurationOfTheRunIfAResumeFailsToStart) {
  const TempDir parent;
  RunFolder({.parent = parent.path(), .name = "a"}, config()).commit();
  Config other = config();
  other.set("train.batch=32");
  { const RunFolder failed({.parent = parent.path(), .name = "a", .resume = true}, other); }
  EXPECT_EQ(read_file(parent / "a/config.toml", 1000), "[train]\nbatch = 64\n");
  RunFolder({.parent = parent.path(), .name = "a", .resume = true}, other).commit();
  EXPECT_EQ(read_file(parent / "a/config.toml", 1000), "[train]\nbatch = 32\n");
}

TEST(RunFolder, CanBeUsedByOneProcessAtATime) {
  const TempDir parent;
  {
    RunFolder folder({.parent = parent.path(), .name = "a"}, config());
    folder.commit();
    for (const bool resume : {false, true}) {
      try {
        const RunFolder second({.parent = parent.path(), .name = "a", .resume = resume}, config());
        ADD_FAILURE() << "two runs have one folder";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::kUnavailable);
        EXPECT_THAT(error.message(),
                    HasSubstr("is in use by process " + std::to_string(getpid()) + " on "));
      }
    }
  }
  EXPECT_EQ(error_of({.parent = parent.path(), .name = "a", .resume = true}), "no error");
}

// weft runs, weft top and the live page look again and again.
TEST(RunFolder, CanBeResumedWhileOthersLookWhetherItIsInUse) {
  const TempDir parent;
  RunFolder({.parent = parent.path(), .name = "a"}, config()).commit();
  const std::jthread looks([&](const std::stop_token& done) {
    while (!done.stop_requested()) is_in_use(parent / "a");
  });
  for (int run = 0; run < 200; ++run)
    ASSERT_NO_THROW(RunFolder({.parent = parent.path(), .name = "a", .resume = true}, config()));
}

TEST(RunFolder, DetectsThatItWasDeletedOrMoved) {
  const TempDir parent;
  const RunFolder folder({.parent = parent.path(), .name = "a"}, config());
  EXPECT_FALSE(folder.is_gone());
  std::filesystem::rename(parent / "a", parent / "b");
  EXPECT_TRUE(folder.is_gone());
  std::filesystem::remove_all(parent / "b");
  EXPECT_TRUE(folder.is_gone());
}

TEST(RunFolder, RefusesNamesOutsideTheParentFolder) {
  const TempDir parent;
  for (const char* name : {"..", ".", "a/b", "../a"}) {
    EXPECT_THAT(error_of({.parent = parent.path(), .name = name}),
                HasSubstr("must be a single folder name"))
        << name;
  }
}

TEST(RunFolder, NamesThePathThatItCannotWrite) {
  EXPECT_THAT(error_of({.parent = "/proc", .name = "weft"}),
              HasSubstr("cannot make the folder /proc/weft: "));
  const TempDir parent;
  write_file_atomic(parent / "file", "");
  EXPECT_THAT(error_of({.parent = parent.path(), .name = "file"}),
              HasSubstr("file: Not a directory"));
}

TEST(RunFolder, TheDefaultNameIsTheDateAndTheRecipe) {
  const auto now = std::chrono::system_clock::from_time_t(1700000000);
  EXPECT_THAT(default_run_name("fashion-mnist", now),
              MatchesRegex("2023-11-1[45]-[0-9]{6}-fashion-mnist"));
  EXPECT_THAT(default_run_name("../a b", now), MatchesRegex("2023-11-1[45]-[0-9]{6}-..-a-b"));
  EXPECT_THAT(refusal([] { check_run_name("two\nlines"); }), HasSubstr("a control character"));
  EXPECT_THAT(refusal([] { check_run_name("../evil"); }), HasSubstr("a single folder name"));
  EXPECT_THAT(refusal([] { check_run_name(std::string(300, 'a')); }), HasSubstr("has 300 bytes"));
  EXPECT_THAT(default_run_name("résumé 2", now), testing::EndsWith("-résumé-2"));
  EXPECT_THAT(default_run_name("", now), MatchesRegex("2023-11-1[45]-[0-9]{6}-run"));
}

}  // namespace
}  // namespace weft::observe
