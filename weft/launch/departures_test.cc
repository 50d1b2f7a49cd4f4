// Who is told to stop when the job is asked to go, with ranks that wait for a signal.
#include "weft/launch/internal/departures.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "weft/launch/internal/node.h"
#include "weft/launch/internal/one_node.h"
#include "weft/launch/launcher.h"
#include "weft/launch/testing/rank_ends.h"

namespace weft::launch::internal {
namespace departures_test {

using std::chrono::milliseconds;
using std::chrono::seconds;

class DeparturesTest : public testing::Test {
 protected:
  DeparturesTest() {
    for (const std::size_t at : {0U, 1U}) node_.place(at, rank_that_waits());
    begin_attempt(node_.situation, 2);
  }
  static RankProcess rank_that_waits() {
    ProcessOptions options;
    options.call = [] { return ::pause(); };
    return {Process(options), rank_link::Link::make().first, LineRelay(), LineRelay()};
  }
  static LaunchOptions two_ranks() {
    LaunchOptions options;
    options.nproc_per_node = "2";
    options.program = {"true"};
    return options;
  }
  bool gets(int signal, std::size_t rank) {
    return node_.ranks[rank].process.wait(Deadline::in(seconds(10))) == ExitStatus{true, signal};
  }
  // A signal before would have ended the rank: of those that wait, it takes the lowest first.
  bool has_got_none(std::size_t rank) {
    node_.ranks[rank].process.signal(SIGIO);
    return gets(SIGIO, rank);
  }

  const LaunchOptions options_ = two_ranks();
  Node node_{options_};
  Departures departures_{node_};
};

TEST_F(DeparturesTest, EndTheLauncherAsRanksThatSaveTheirCheckpoint) {
  EXPECT_EQ(departures_.stop_code(), 128 + SIGTERM);
  departures_.on_signal(SIGHUP, false, kStart);
  EXPECT_EQ(departures_.stop_code(), 128 + SIGTERM);
}

TEST_F(DeparturesTest, EndTheLauncherAsRanksAfterCtrlC) {
  departures_.on_signal(SIGINT, false, kStart);
  EXPECT_EQ(departures_.stop_code(), 128 + SIGINT);
}

// A closed terminal sends SIGHUP twice within a millisecond, and the second request kills.
TEST_F(DeparturesTest, CountSignalsThatComeTogetherAsOneRequest) {
  departures_.on_signal(SIGHUP, false, kStart);
  departures_.on_signal(SIGHUP, false, kStart + milliseconds(1));
  departures_.on_signal(SIGTERM, false, kStart + kOneRequest - milliseconds(1));
  EXPECT_EQ(node_.situation.stop_signals, 1);
  departures_.on_signal(SIGHUP, false, kStart + kOneRequest);
  EXPECT_EQ(node_.situation.stop_signals, 2);
}

TEST_F(DeparturesTest, SpareAReplacementThatHasNotJoinedTheOthers) {
  replaced(node_.situation, 1);
  departures_.on_signal(SIGTERM, false, kStart);
  EXPECT_TRUE(gets(SIGTERM, 0));
  EXPECT_TRUE(has_got_none(1));
}

TEST_F(DeparturesTest, TellTheOthersIfTheOnlyRankThatKnowsIsLost) {
  node_.policy.max_replacements = 1;
  departures_.on_stop_of(0, /*by_signal=*/true);
  node_.situation.ranks[0] = killed(SIGKILL, seconds(1));
  departures_.on_end_of(0);
  EXPECT_TRUE(gets(SIGTERM, 1));
  EXPECT_TRUE(node_.situation.asked);
  EXPECT_EQ(decide(node_.situation, node_.policy, kStart + seconds(1)).act, Act::kReplace)
      << "they cannot save without it";
}

TEST_F(DeparturesTest, TellTheOthersNothingIfTheRankThatKnowsHasStopped) {
  departures_.on_stop_of(0, /*by_signal=*/true);
  node_.situation.ranks[0] = exited(128 + SIGTERM, seconds(1));
  departures_.on_end_of(0);
  EXPECT_FALSE(node_.situation.asked);
  EXPECT_TRUE(has_got_none(1));
}

TEST_F(DeparturesTest, TellTheOthersNothingIfTheProgramHasAskedToStop) {
  departures_.on_stop_of(0, /*by_signal=*/false);
  node_.situation.ranks[0] = killed(SIGKILL, seconds(1));
  departures_.on_end_of(0);
  EXPECT_FALSE(node_.situation.asked);
  EXPECT_TRUE(has_got_none(1));
}

}  // namespace departures_test
}  // namespace weft::launch::internal
