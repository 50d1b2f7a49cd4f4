#include "weft/base/text/words.h"

#include <gtest/gtest.h>

namespace weft {

TEST(Words, CountedHasThePluralOfTheNumber) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(std::size_t{3}, "rank"), "3 ranks");
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(counted(std::int64_t{2}, "batch", "batches"), "2 batches");
}

TEST(Words, JoinedHasTheSeparatorBetweenWordsOnly) {
  EXPECT_EQ(joined({}), "");
  EXPECT_EQ(joined({"dp"}), "dp");
  EXPECT_EQ(joined({"", "tp", "pp"}, " "), " tp pp");
}

}  // namespace weft
