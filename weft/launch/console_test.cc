#include "weft/launch/internal/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "weft/base/file.h"
#include "weft/launch/internal/line_relay.h"
#include "weft/launch/internal/pipe.h"

namespace weft::launch::internal {
namespace console_test {

// All that is in a pipe now.
std::string read_now(const Fd& pipe) {
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(pipe.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

// The output of a rank, its relay, and a console that is a pipe.
struct Relayed {
  std::array<Fd, 2> rank = make_pipe("a test"), shown = make_pipe("a test");
  Console console;
  LineRelay relay;

  explicit Relayed(std::size_t most = Console::kMost)
      : console(shown[1].get(), most), relay(std::move(rank[0]), {.console = &console}) {}
  ~Relayed() { console.drop(); }

  void turn(bool ends = false) {
    console.begin_turn(ends);
    relay.pump();
  }
  std::size_t watched() const {
    std::vector<pollfd> descriptors;
    relay.watch(descriptors);
    return descriptors.size();
  }
};

TEST(Console, KeepsTextThatNobodyReadsNowAndPrintsItInOrderLater) {
  Relayed one;
  std::string all;
  for (int line = 0; line < 1000; ++line) {
    const std::string text = std::to_string(line) + std::string(300, '.') + "\n";
    one.console.print(text);
    all += text;
  }
  EXPECT_TRUE(one.console.is_full());
  std::string seen = read_now(one.shown[0]);
  EXPECT_LT(seen.size(), all.size());
  while (one.console.is_full()) {
    one.console.flush();
    seen += read_now(one.shown[0]);
  }
  EXPECT_EQ(seen, all);
  EXPECT_EQ(one.console.take_dropped(), 0u);
}

TEST(Console, LeavesTheDescriptorBlockingForOtherProcesses) {
  const Relayed one;
  EXPECT_EQ(::fcntl(one.shown[1].get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(Console, LetsARankWaitWhileNobodyReadsAndLosesNothing) {
  Relayed one;
  const std::string before(200'000, 'b');
  one.console.print(before + "\n");
  write_all(one.rank[1].get(), "from the rank\n", "a pipe");
  one.turn();
  EXPECT_EQ(one.watched(), 0u) << "a poll that returns at once, again and again";
  std::string seen;
  for (int turn = 0; turn < 100 && (one.console.is_full() || one.watched() == 0); ++turn) {
    seen += read_now(one.shown[0]);
    one.turn();
  }
  seen += read_now(one.shown[0]);
  EXPECT_EQ(seen, before + "\nfrom the rank\n");
}

TEST(Console, TakesTheLastOutputOfARankThatHasEnded) {
  Relayed one;
  one.console.print(std::string(200'000, 'b') + "\n");
  write_all(one.rank[1].get(), "why\n", "a pipe");
  one.turn();
  one.relay.finish();
  std::string seen;
  for (; one.console.is_full(); one.console.flush()) seen += read_now(one.shown[0]);
  EXPECT_TRUE((seen + read_now(one.shown[0])).ends_with("b\nwhy\n"));
}

TEST(Console, LetsNoRankOfAJobThatEndsWaitAndCountsWhatItDrops) {
  Relayed one(200'000);
  one.console.print(std::string(199'990, 'b') + "\n");
  write_all(one.rank[1].get(), "0123456789\n", "a pipe");
  one.turn(true);
  EXPECT_EQ(one.watched(), 1u);
  EXPECT_EQ(one.console.take_dropped(), 11u);
  one.console.drop();
  EXPECT_FALSE(one.console.is_full());
  EXPECT_GT(one.console.take_dropped(), 0u);
}

}  // namespace console_test
}  // namespace weft::launch::internal
