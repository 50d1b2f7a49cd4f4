#include "weft/base/fault/failpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "weft/base/testing/refusal.h"

namespace weft {
namespace {

TEST(Failpoints, AreReadFromTheirText) {
  EXPECT_TRUE(parse_failpoints("").empty());
  EXPECT_EQ(parse_failpoints("meet.begin:attempt=2:once=/tmp/x"),
            (std::vector<Failpoint>{{.point = "meet.begin", .once = "/tmp/x", .attempt = 2}}));
  EXPECT_EQ(parse_failpoints("update.middle:rank=1:step=7;copy.middle:action=stop:newcomer=1"),
            (std::vector<Failpoint>{
                {"update.middle", 1, 7},
                {"copy.middle", -1, -1, Failpoint::Action::kStop, true},
            }));
}

TEST(Failpoints, RejectUnknownPlacesKeysAndValues) {
  expect_refused([] { parse_failpoints("update.midle"); }, Errc::kBadConfig,
                 "\"update.midle\": unknown place; known are step.begin");
  for (const char* bad :
       {"step.begin:rank=x", "step.begin:rank", "step.begin:rank=-1", "step.begin:level=3",
        "step.begin:action=explode", "step.begin:=", ":", "step.begin:action=break"})
    expect_refused([&] { parse_failpoints(bad); }, Errc::kBadConfig, "WEFT_FAIL");
}

TEST(FailpointsDeathTest, KillTheProcessAtTheirStepAlone) {
  const auto run = [](std::int64_t last) {
    ::setenv("WEFT_FAIL", "step.begin:step=3", 1);
    for (std::int64_t step = 1; step <= last; ++step) {
      set_failpoint_step(step);
      failpoint("update.begin");
      failpoint("step.begin");
    }
    ::_exit(0);
  };
  EXPECT_EXIT(run(2), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run(5), ::testing::KilledBySignal(SIGKILL), "failpoint step.begin: .* step 3");
}

TEST(FailpointsDeathTest, FailInOneProcessAloneWithAFile) {
  const std::string file = ::testing::TempDir() + "failpoint_once_" + std::to_string(::getpid());
  const auto run = [&] {
    ::setenv("WEFT_FAIL", ("step.begin:once=" + file).c_str(), 1);
    const bool is_first = is_failpoint("step.begin");
    failpoint("step.begin");
    ::_exit(is_first ? 1 : 0);
  };
  EXPECT_EXIT(run(), ::testing::KilledBySignal(SIGKILL), "failpoint step.begin");
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
  ::unlink(file.c_str());
}

TEST(FailpointsDeathTest, BreakAPlaceAndLetTheProcessGoOn) {
  const auto run = [] {
    ::setenv("WEFT_FAIL", "copy.middle:step=3:action=break;step.begin:step=4:action=exit", 1);
    set_failpoint_step(2);
    if (is_broken("copy.middle")) ::_exit(1);
    set_failpoint_step(3);
    failpoint("copy.middle");
    if (is_failpoint("copy.middle") || !is_broken("copy.middle")) ::_exit(2);
    set_failpoint_step(4);
    if (is_broken("step.begin")) ::_exit(1);
    failpoint("step.begin");
    ::_exit(0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(3), "failpoint copy.middle: .* step 3");
}

}  // namespace
}  // namespace weft
