#include "weft/observe/run/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "weft/base/error.h"

namespace weft::observe {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string hex(const std::string& bytes) {
  std::string out;
  for (const unsigned char byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

// Expected bytes: from RecordWriter and tensorboard.compat.proto of tensorboard 2.21.
TEST(EventFile, WritesTheBytesThatTensorBoardWrites) {
  EXPECT_EQ(hex(tf_record(version_event(1700000000.5))),
            "1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e"
            "743a322b353110");
  EXPECT_EQ(hex(tf_record(scalar_event(1700000000.5, 300, {{"train/loss", 0.25}, {"lr", -1.5}}))),
            "2c00000000000000f4aecc450900002040fc54d94110ac022a1e0a110a0a747261"
            "696e2f6c6f7373150000803e0a090a026c72150000c0bf972fd7e3");
  EXPECT_EQ(hex(tf_record(restart_event(1700000000.5, 300))),
            "100000000000000095fbfe180900002040fc54d94110ac023a020801b94512a3");
}

TEST(EventFile, IsNamedAsTensorBoardExpectsAndStartsWithItsVersion) {
  const TempDir folder;
  const EventFile first(folder.path());
  const EventFile second(folder.path());
  EXPECT_THAT(std::filesystem::path(first.path()).filename().string(),
              MatchesRegex("events\\.out\\.tfevents\\.1[0-9]+\\..+\\." +
                           std::to_string(::getpid()) + "\\.[0-9]+"));
  EXPECT_NE(first.path(), second.path());
  EXPECT_THAT(read_file(first.path(), 1000), HasSubstr("brain.Event:2"));
}

TEST(EventFile, HoldsAddedEventsAfterAFlushAndAfterItsDestruction) {
  const TempDir folder;
  std::string path;
  std::size_t flushed = 0;
  {
    EventFile file(folder.path());
    path = file.path();
    const std::size_t empty = read_file(path, 1000).size();
    file.add(1, {{"a", 1}});
    file.flush();
    flushed = read_file(path, 1000).size();
    EXPECT_GT(flushed, empty);
    file.add(2, {{"a", 1}});
  }
  EXPECT_GT(read_file(path, 1000).size(), flushed);
}

TEST(EventFile, AMissingFolderIsAnErrorThatNamesThePath) {
  try {
    EventFile file("/nonexistent");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("/nonexistent/events.out.tfevents."));
  }
}

}  // namespace
}  // namespace weft::observe
