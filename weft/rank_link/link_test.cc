#include "weft/rank_link/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

namespace weft::rank_link {
namespace {

TEST(Link, KeepsTheOrderAndTheBoundsOfTexts) {
  auto [rank, launcher] = Link::make();
  EXPECT_TRUE(rank.tell("joined"));
  EXPECT_TRUE(rank.tell("run", "/runs/a b"));
  EXPECT_EQ(launcher.next(), (Message{"joined", ""}));
  EXPECT_EQ(launcher.next(), (Message{"run", "/runs/a b"}));
  EXPECT_EQ(launcher.next(), std::nullopt);
  EXPECT_FALSE(launcher.ended());
}

// The report of a node with many ranks, each with the cause of its end.
TEST(Link, DoesNotCutALongText) {
  auto [rank, launcher] = Link::make();
  const std::string report = std::string(150'000, 'r') + "end";
  EXPECT_TRUE(rank.tell("report", report));
  EXPECT_TRUE(rank.tell("joined"));
  EXPECT_EQ(launcher.next(), (Message{"report", report}));
  EXPECT_EQ(launcher.next(), (Message{"joined", ""}));
}

TEST(Link, SaysThatATextIsTooLongToBeSent) {
  auto [rank, launcher] = Link::make();
  testing::internal::CaptureStderr();
  EXPECT_FALSE(rank.tell("report", std::string(64 << 20, 'r')));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("a message \"report\" of 67108871 bytes is too long"));
  EXPECT_EQ(launcher.next(), std::nullopt);
}

TEST(Link, WaitsForATextUntilTheDeadline) {
  auto [rank, launcher] = Link::make();
  EXPECT_EQ(rank.wait(Deadline::in(std::chrono::milliseconds(5))), std::nullopt);
  std::thread other([&link = launcher] { link.tell("ranks", "3"); });
  EXPECT_EQ(rank.wait(Deadline::in(std::chrono::seconds(30))), (Message{"ranks", "3"}));
  other.join();
}

TEST(Link, ReturnsTheTextsOfAnEndedProcessAndThenItsEnd) {
  auto ends = std::make_optional(Link::make());
  Link launcher = std::move(ends->second);
  ends->first.tell("leaving");
  ends.reset();
  EXPECT_EQ(launcher.next(), (Message{"leaving", ""}));
  EXPECT_EQ(launcher.wait(Deadline::in(std::chrono::seconds(30))), std::nullopt);
  EXPECT_TRUE(launcher.ended());
  EXPECT_FALSE(launcher.tell("ranks", "2"));  // and no SIGPIPE
}

TEST(Link, ReturnsTheTextsOfAProcessThatEndedWithoutReadingItsOwn) {
  auto ends = std::make_optional(Link::make());
  Link launcher = std::move(ends->second);
  launcher.tell("ranks", "4");
  ends->first.tell("leaving");
  ends.reset();
  EXPECT_EQ(launcher.next(), (Message{"leaving", ""}));
  EXPECT_EQ(launcher.next(), std::nullopt);
  EXPECT_TRUE(launcher.ended());
}

TEST(Link, DoesNotWaitForAReaderThatNeverReads) {
  auto [rank, launcher] = Link::make();
  int sent = 0;
  while (rank.tell("rate", std::string(1000, '1'))) ASSERT_LT(++sent, 100'000);
  EXPECT_GT(sent, 0);
}

TEST(Link, IsMissingWithoutALauncher) { EXPECT_EQ(rank_link::launcher(), nullptr); }

}  // namespace
}  // namespace weft::rank_link
