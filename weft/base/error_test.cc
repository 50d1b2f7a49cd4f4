#include "weft/base/error.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <set>

namespace weft {
namespace {

TEST(Error, ShowsCodePlaceAndMessageInOneLine) {
  const Error error(Errc::kPeerLost, "the connection was closed", {"all_reduce", 0, 2});
  EXPECT_STREQ(error.what(), "PeerLost{2}: all_reduce, rank 0: the connection was closed");
  EXPECT_EQ(error.code(), Errc::kPeerLost);
  EXPECT_EQ(error.message(), "the connection was closed");
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

}  // namespace
}  // namespace weft
