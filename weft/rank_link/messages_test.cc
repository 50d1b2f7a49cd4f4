#include "weft/rank_link/messages.h"

#include <gtest/gtest.h>

#include "weft/base/testing/decimal_comma.h"

namespace weft::rank_link {
namespace messages_test {

template <class Variant, class M>
void expect_text(const M& message, const Message& text) {
  EXPECT_EQ(encode(message), text);
  const auto again = decode<Variant>(text);
  ASSERT_TRUE(again && std::holds_alternative<M>(*again)) << text.verb;
  EXPECT_EQ(std::get<M>(*again), message) << text.verb;
}

TEST(Messages, OfRanksAreTheirTexts) {
  expect_text<RankMessage>(Joining{}, {"joining", ""});
  expect_text<RankMessage>(RunBegun{"/runs/a b"}, {"run", "/runs/a b"});
  expect_text<RankMessage>(Stopping{.by_signal = true}, {"stopping", "signal"});
  expect_text<RankMessage>(Stopping{}, {"stopping", "should_stop"});
  expect_text<RankMessage>(StepsDone{1'000'000'000'000}, {"step", "1000000000000"});
  expect_text<RankMessage>(Throughput{12.5}, {"rate", "12.5"});
  expect_text<RankMessage>(Usable{{.multiple = 2, .shards = 4}}, {"multiple", "2 4"});
}

TEST(Messages, HaveADecimalPointInEachLocale) {
  const DecimalComma locale;
  expect_text<RankMessage>(Throughput{4822.5}, {"rate", "4822.5"});
}

TEST(Messages, OfServersAndLaunchersAreTheirTexts) {
  expect_text<ServerMessage>(ShardLost{3}, {"lost", "3"});
  expect_text<ServerMessage>(Alone{}, {"alone", ""});
  expect_text<LauncherMessage>(RanksWanted{.number = 4, .newcomers = {2, 3}}, {"ranks", "4 2 3"});
  expect_text<LauncherMessage>(RanksWanted{.number = 4, .newcomers = {}}, {"ranks", "4"});
  expect_text<LauncherMessage>(RanksLost{{{2, 3}}}, {"lost", "2 3"});
  expect_text<LauncherMessage>(BecomeRank{"RANK=1"}, {"become", "RANK=1"});
}

TEST(Messages, AreNoneIfTheVerbIsOfAnotherProtocolOrTheValueIsWrong) {
  EXPECT_FALSE(decode<RankMessage>({"lost", "1"}));
  EXPECT_FALSE(decode<LauncherMessage>({"joined", ""}));
  EXPECT_FALSE(decode<RankMessage>({"", ""}));
  for (const char* text : {"", "x", "1.5", "1 ", "99999999999999999999"})
    EXPECT_FALSE(decode<RankMessage>({"step", text})) << text;
  for (const char* text : {"", "x", "4 x", "4,3"})
    EXPECT_FALSE(decode<LauncherMessage>({"ranks", text})) << text;
  EXPECT_FALSE(decode<LauncherMessage>({"lost", "all"}));
  EXPECT_FALSE(decode<RankMessage>({"stopping", "because"}));
}

TEST(Messages, GoNowhereWithoutALauncher) { tell_launcher(Joined{}); }

TEST(Messages, TravelOverALink) {
  auto [rank, launcher] = Link::make();
  EXPECT_TRUE(tell(rank, GroupSize{3}));
  const auto came = launcher.next();
  ASSERT_TRUE(came);
  EXPECT_EQ(std::get<GroupSize>(*decode<RankMessage>(*came)).value, 3);
}

}  // namespace messages_test
}  // namespace weft::rank_link
