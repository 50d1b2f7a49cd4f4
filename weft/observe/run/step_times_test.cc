#include "weft/observe/run/step_times.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "weft/base/error.h"
#include "weft/base/testing/variables.h"

namespace weft::observe {
namespace step_times_test {

TEST(StepTimes, AreReadBackFromTheirLines) {
  const StepTime finished{123456789012345, 77, 1, 4, 2, 12, 3, 768};
  EXPECT_EQ(to_line(finished),
            "{\"ns\":123456789012345,\"pid\":77,\"rank\":1,\"ranks\":4,\"group\":2,\"step\":12,"
            "\"epoch\":3,\"position\":768}\n");
  StepTime ready = finished;
  ready.ready = true;
  for (const StepTime& time : {finished, ready}) {
    const std::string line = to_line(time);
    EXPECT_EQ(step_time_of(line.substr(0, line.size() - 1)), time);
    for (std::size_t size = 0; size + 1 < line.size(); ++size)
      EXPECT_FALSE(step_time_of(line.substr(0, size))) << size;
  }
}

TEST(StepTimes, AreWrittenWhereTheVariableSaysAndReadAsTheyCome) {
  const TempDir dir;
  StepTimesReader reader(dir / "times");
  EXPECT_TRUE(reader.read().empty());
  const TestVariables rank({{"RANK", "3"}, {"WEFT_STEP_TIMES", {}}});
  StepTimes times = [&] {
    const TestVariables file("WEFT_STEP_TIMES", dir / "times");
    return StepTimes();
  }();
  EXPECT_FALSE(StepTimes().is_on());
  StepTimes().add({.step = 9});
  const auto before = std::chrono::steady_clock::now().time_since_epoch();
  times.add({.ranks = 4, .step = 1});
  times.add({.ranks = 4, .step = 2});
  const auto first = reader.read();
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[1].step, 2);
  EXPECT_EQ(first[1].rank, 3);
  EXPECT_GE(std::chrono::nanoseconds(first[0].ns), before);
  EXPECT_GE(first[1].ns, first[0].ns);
  std::ofstream(dir / "times", std::ios::app) << "noise\n" << to_line({.step = 3}).substr(0, 9);
  EXPECT_TRUE(reader.read().empty());
  std::ofstream(dir / "times", std::ios::app) << to_line({.step = 3}).substr(9);
  ASSERT_EQ(reader.read(), std::vector<StepTime>{{.step = 3}});
}

TEST(StepTimes, NameAFileThatCannotBeOpened) {
  const TestVariables file("WEFT_STEP_TIMES", "/none/times");
  EXPECT_THROW(StepTimes(), Error);
}

}  // namespace step_times_test
}  // namespace weft::observe
