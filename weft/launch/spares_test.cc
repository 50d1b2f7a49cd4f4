// When warm spares start, and what becomes of those that end.
#include "weft/launch/internal/spares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "weft/base/error.h"

namespace weft::launch::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Time kCalm = Time{} + seconds(1000);

TEST(NextSpare, IsDueALittleAfterTheJobHasBecomeCalm) {
  EXPECT_EQ(next_spare({.wanted = 1, .calm_since = kCalm}), kCalm + kSpareDelay);
}

TEST(NextSpare, IsNotDueWhileTheJobRecoversOrAllSparesRun) {
  EXPECT_FALSE(next_spare({.wanted = 1}));
  EXPECT_FALSE(next_spare({.wanted = 2, .running = 2, .calm_since = kCalm}));
  EXPECT_FALSE(next_spare({.wanted = 0, .calm_since = kCalm}));
}

TEST(NextSpare, WaitsTwiceAsLongAfterEachSpareThatEndedUpToAMinute) {
  SpareSituation seen{.wanted = 1, .calm_since = kCalm, .last_end = kCalm + seconds(50)};
  std::vector<milliseconds> waits;
  for (seen.ended = 1; seen.ended <= 10; ++seen.ended)
    waits.push_back(std::chrono::duration_cast<milliseconds>(*next_spare(seen) - seen.last_end));
  EXPECT_THAT(waits, ElementsAre(milliseconds(500), seconds(1), seconds(2), seconds(4), seconds(8),
                                 seconds(16), seconds(32), seconds(60), seconds(60), seconds(60)));
  seen.ended = 1'000'000;
  EXPECT_EQ(*next_spare(seen), seen.last_end + seconds(60));
}

// Spares that run a function; the test's clock stands where it is put.
struct Pool {
  std::function<int(rank_link::Link&)> work;
  std::vector<std::string> notes;
  std::vector<pid_t> ended;
  int started = 0;
  bool fails = false;
  Time now = kCalm;
  Spares spares;

  Pool(int wanted, std::function<int(rank_link::Link&)> does)
      : work(std::move(does)),
        spares(
            wanted, [this] { return start(); },
            [this](const std::string& text) { notes.push_back(text); },
            [this](pid_t group) { ended.push_back(group); }) {}

  Spare start() {
    ++started;
    if (fails) throw Error(Errc::kUnavailable, "no memory for a process");
    auto [link, its] = rank_link::Link::make();
    ProcessOptions options;
    options.inherit = {its.fd()};
    options.call = [this, end = &its] { return work(*end); };
    Process process(options);
    return {.process = std::move(process), .link = std::move(link), .out = {}, .err = {}};
  }

  // Looks until `done`, with limits of the real clock. The pool's clock does not move.
  template <class Done>
  void until(Done done) {
    for (int turn = 0; turn < 6000 && !done(); ++turn) {
      spares.look(now, true);
      std::this_thread::sleep_for(milliseconds(5));
    }
    ASSERT_TRUE(done());
  }
  void become_calm() {
    spares.look(now, true);
    now += kSpareDelay;
  }
};

int get_ready_and_wait(rank_link::Link& link) {
  link.tell("ready");
  while (!link.ended()) link.wait(Deadline::in(seconds(30)));
  return 0;
}

TEST(Spares, AreGivenOutOnceTheyAreReadyAndReplacedLater) {
  Pool pool(1, get_ready_and_wait);
  pool.spares.look(pool.now, true);
  EXPECT_EQ(pool.started, 0);
  EXPECT_FALSE(pool.spares.take());
  pool.become_calm();
  pool.until([&] { return pool.spares.has_ready(); });
  EXPECT_EQ(pool.started, 1);
  const auto taken = pool.spares.take();
  ASSERT_TRUE(taken);
  EXPECT_FALSE(pool.spares.take());
  pool.spares.look(pool.now, false);  // a rank joins
  EXPECT_EQ(pool.started, 1);
  pool.become_calm();
  pool.spares.look(pool.now, true);
  EXPECT_EQ(pool.started, 2);
}

TEST(Spares, ThatEndAreNamedAndStartedAgainAfterAWait) {
  Pool pool(1, [](rank_link::Link&) { return 7; });
  pool.become_calm();
  pool.until([&] { return !pool.notes.empty(); });
  EXPECT_THAT(pool.notes[0], HasSubstr("a spare has ended: exit code 7"));
  EXPECT_EQ(pool.started, 1);
  pool.spares.look(pool.now + milliseconds(499), true);
  EXPECT_EQ(pool.started, 1);
  pool.spares.look(pool.now + milliseconds(500), true);
  EXPECT_EQ(pool.started, 2);
}

TEST(Spares, ThatCannotBeStartedAreTriedAgain) {
  Pool pool(1, get_ready_and_wait);
  pool.fails = true;
  pool.become_calm();
  pool.spares.look(pool.now, true);
  EXPECT_THAT(pool.notes, ElementsAre(HasSubstr("no spare could be started: no memory")));
  pool.fails = false;
  pool.now += milliseconds(500);
  pool.until([&] { return pool.spares.has_ready(); });
}

// The guard of a killed launcher kills the groups that it knows, and the system may use the number
// of an ended one again.
TEST(Spares, AreForgottenByTheGuardOnceTheyHaveEndedByThemselves) {
  Pool pool(1, [](rank_link::Link& link) {
    link.wait(Deadline::in(seconds(30)));
    return 7;
  });
  pool.become_calm();
  pool.spares.look(pool.now, true);
  const auto groups = pool.spares.groups();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_THAT(pool.ended, IsEmpty());
  ::kill(groups[0], SIGKILL);
  pool.until([&] { return !pool.notes.empty(); });
  EXPECT_EQ(pool.ended, groups);
}

TEST(Spares, AreForgottenByTheGuardIfTheyWereTakenAndBecameNoRank) {
  Pool pool(1, get_ready_and_wait);
  pool.become_calm();
  pool.until([&] { return pool.spares.has_ready(); });
  auto taken = pool.spares.take();
  ASSERT_TRUE(taken);
  const pid_t group = taken->process.pid();
  EXPECT_THAT(pool.ended, IsEmpty()) << "it may become a rank";
  pool.spares.end(std::move(*taken));
  EXPECT_THAT(pool.ended, ElementsAre(group));
  EXPECT_NE(::kill(-group, 0), 0);
}

TEST(Spares, EndWhenTheyAreCleared) {
  Pool pool(2, get_ready_and_wait);
  pool.become_calm();
  pool.until([&] { return pool.started == 2 && pool.spares.has_ready(); });
  const auto groups = pool.spares.groups();
  pool.spares.clear();
  EXPECT_EQ(pool.ended, groups);
  EXPECT_FALSE(pool.spares.take());
  std::vector<pollfd> watched;
  pool.spares.watch(watched);
  EXPECT_TRUE(watched.empty());
}

}  // namespace
}  // namespace weft::launch::internal
