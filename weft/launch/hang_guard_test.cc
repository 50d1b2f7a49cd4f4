#include "weft/launch/internal/hang_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace weft::launch::internal {
namespace hang_guard_test {

using ::testing::HasSubstr;

TEST(HangWriter, LeavesAProcessAloneThatIsStuckInItsFileSystem) {
  HangWriter writer;
  EXPECT_EQ(writer.start([] { ::pause(); }), "");
  EXPECT_THAT(writer.start([] {}), HasSubstr("still writes those before"));
}

TEST(HangWriter, WritesAgainAfterTheFilesBeforeAreWritten) {
  HangWriter writer;
  std::string why = "not tried yet";
  EXPECT_EQ(writer.start([] {}), "");
  for (int turn = 0; turn < 10'000 && !why.empty(); ++turn) {
    ::usleep(500);
    why = writer.start([] {});
  }
  EXPECT_EQ(why, "");
}

}  // namespace hang_guard_test
}  // namespace weft::launch::internal
