#include "weft/base/error.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "weft/base/internal/describe.h"

namespace weft {
namespace {

TEST(Error, ShowsCodePlaceAndMessageInOneLine) {
  const Error error(Errc::kPeerLost, "the connection was closed", {"all_reduce", 0, 2});
  EXPECT_STREQ(error.what(), "PeerLost{2}: all_reduce, rank 0: the connection was closed");
  EXPECT_EQ(error.code(), Errc::kPeerLost);
  EXPECT_EQ(error.message(), "the connection was closed");
}

TEST(Error, NamesTheRankThatDidNotComeInTime) {
  const Error late(Errc::kTimeout, "rank 2 did not arrive", {"barrier", 0, 2});
  EXPECT_STREQ(late.what(), "Timeout{2}: barrier, rank 0: rank 2 did not arrive");
  const Error unknown(Errc::kTimeout, "no group could be formed", {"regroup", 0});
  EXPECT_STREQ(unknown.what(), "Timeout: regroup, rank 0: no group could be formed");
}

TEST(Error, StaysOneLineForAnyQuotedText) {
  const Error error(Errc::kBadConfig, "unknown key \"a\nb\x1b[2J\"");
  EXPECT_EQ(error.message(), "unknown key \"a?b?[2J\"");
  EXPECT_STREQ(error.what(), "BadConfig: unknown key \"a?b?[2J\"");
}

TEST(Error, RequireThrowsInvalidArgumentAndCheckThrowsInternal) {
  try {
    WEFT_REQUIRE(1 + 1 == 3, "count must be 3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "InvalidArgument: count must be 3");
  }
  try {
    WEFT_CHECK(false, "the table is empty");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInternal);
    EXPECT_NE(error.message().find("weft/base/error_test.cc:"), std::string::npos);
  }
}

TEST(Error, ExitCodesAreAboveSignalExitCodesIfARetryMayHelpElseBelow128) {
  std::set<int> codes;
  for (Errc code : {Errc::kTimeout, Errc::kPeerLost, Errc::kAborted, Errc::kUnavailable}) {
    EXPECT_GT(exit_code(code), 128 + SIGRTMAX);
    EXPECT_LE(exit_code(code), 255);
    codes.insert(exit_code(code));
  }
  EXPECT_EQ(codes.size(), 4u);
  for (Errc code : {Errc::kInvalidArgument, Errc::kBadConfig, Errc::kCorrupt, Errc::kInternal})
    EXPECT_LT(exit_code(code), 128);
}

TEST(Describe, OmitsStackFramesUnlessRequested) {
  const std::runtime_error error(
      "mat1 and mat2 cannot be multiplied\n(2x3 and 4x5)\nException raised from meta at "
      "Blas.cpp:1\nframe #0: f\n");
  EXPECT_EQ(describe(error), "mat1 and mat2 cannot be multiplied (2x3 and 4x5)");
  ::setenv("WEFT_DEBUG", "1", 1);
  EXPECT_EQ(describe(error), error.what());
  ::unsetenv("WEFT_DEBUG");
}

TEST(Describe, SaysWhatHasRunOut) {
  const std::runtime_error memory(
      "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
      "you tried to allocate 400000000 bytes. Error code 12 (Cannot allocate memory)");
  EXPECT_EQ(describe(memory),
            "Unavailable: out of memory: 400000000 bytes were asked for; use a smaller batch or "
            "model, fewer ranks, or a higher memory limit");
  EXPECT_EQ(code_of(memory), Errc::kUnavailable);
  EXPECT_EQ(describe(std::bad_alloc()).find("Unavailable: out of memory; use a smaller"), 0u);
  EXPECT_EQ(code_of(std::bad_alloc()), Errc::kUnavailable);
  const std::runtime_error primitive("could not create a primitive");
  EXPECT_EQ(describe(primitive), "Unavailable: out of memory? oneDNN could not create a primitive");
  const std::system_error thread(EAGAIN, std::generic_category());
  EXPECT_EQ(describe(thread).find("Unavailable: cannot start a thread: "), 0u);
  EXPECT_EQ(code_of(thread), Errc::kUnavailable);
}

TEST(CodeOf, IsTheCodeOfAnErrorAndInternalForOthers) {
  EXPECT_EQ(code_of(Error(Errc::kCorrupt, "torn")), Errc::kCorrupt);
  EXPECT_EQ(code_of(std::runtime_error("no such operator")), Errc::kInternal);
}

// Libraries throw the system's errors. They are no bugs of weft.
TEST(Describe, NamesThePathAndTheReasonOfAnErrorOfTheSystem) {
  const auto of = [](int reason) { return std::make_error_code(static_cast<std::errc>(reason)); };
  const std::filesystem::filesystem_error missing("cannot open", "/nowhere", of(ENOENT));
  EXPECT_EQ(describe(missing), "InvalidArgument: /nowhere: No such file or directory");
  EXPECT_EQ(code_of(missing), Errc::kInvalidArgument);
  const std::filesystem::filesystem_error full("cannot copy", "/a", "/b", of(ENOSPC));
  EXPECT_EQ(describe(full), "Unavailable: /a and /b: No space left on device");
  EXPECT_EQ(code_of(full), Errc::kUnavailable);
  const std::filesystem::filesystem_error nameless("no current folder", of(ENOENT));
  EXPECT_EQ(describe(nameless).find("InvalidArgument: "), 0u);
  EXPECT_NE(describe(nameless).find("no current folder"), std::string::npos);
  EXPECT_EQ(code_of(std::system_error(ENOENT, std::system_category())), Errc::kInvalidArgument);
  EXPECT_EQ(
      describe(std::system_error(ENOMEM, std::generic_category())).find("Unavailable: out of"), 0u);
}

TEST(DescribeInto, IsDescribeCutToTheMemoryThatIsThere) {
  char text[12];
  EXPECT_EQ(internal::describe_into(Error(Errc::kCorrupt, "torn\nfile"), text, sizeof text), 11u);
  EXPECT_STREQ(text, "Corrupt: to");
  char all[200];
  for (const auto& error : {std::runtime_error("one\ntwo\n"), std::runtime_error("\x1b[2J")}) {
    internal::describe_into(error, all, sizeof all);
    EXPECT_EQ(all, describe(error));
  }
}

}  // namespace
}  // namespace weft
