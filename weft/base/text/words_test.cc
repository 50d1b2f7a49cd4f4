#include "weft/base/text/words.h"

#include <gmock/gmock.h>
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
  EXPECT_EQ(joined(std::vector<int>{1, 2, 4}), "1, 2, 4");
  const char* const names[] = {"auto", "shm"};
  EXPECT_EQ(joined(names, "|"), "auto|shm");
}

TEST(Words, CharactersBeyondAsciiCountOnce) {
  EXPECT_EQ(num_characters(""), 0U);
  EXPECT_EQ(num_characters("läufe …"), 7U);
}

TEST(Words, SplitLeavesOutEmptyParts) {
  EXPECT_THAT(split("a,,b c,", ','), testing::ElementsAre("a", "b c"));
  EXPECT_THAT(split("", ','), testing::IsEmpty());
}

TEST(Words, OneLineHasNoControlCharacters) {
  EXPECT_EQ(one_line("a\n\x1b[1m\x7f\xc3\xa9"), "a  [1m \xc3\xa9");
  EXPECT_EQ(one_line("a\tb", '?'), "a?b");
}

TEST(Words, LocalTimeHasTheFormat) {
  const auto when = std::chrono::system_clock::from_time_t(1'700'000'000);  // 22:13:20 in UTC
  EXPECT_THAT(local_time(when), testing::MatchesRegex("2023-11-1[45] [0-9]{2}:[0-9]{2}:20"));
  EXPECT_EQ(local_time(when, "hang-%Y"), "hang-2023");
}

}  // namespace weft
