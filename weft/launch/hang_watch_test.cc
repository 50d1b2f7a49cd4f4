#include "weft/launch/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::launch::hang_watch_test {
namespace {

using namespace std::chrono_literals;
using observe::Activity;
using observe::RankView;
using observe::ThreadState;
using How = Hang::How;
using Kind = ThreadState::Kind;

// Ranks 0 … n-1 of a node, whose time the test turns in looks of 100 ms.
class Node {
 public:
  explicit Node(int ranks) : views_(static_cast<std::size_t>(ranks)), states_(views_.size()) {
    for (int rank = 0; rank < ranks; ++rank) {
      views_[at(rank)].rank = rank;
      views_[at(rank)].pid = 100 + rank;
      states_[at(rank)].kind = Kind::kRuns;
      enter(rank, 1, Activity::kInit);
    }
  }

  void enter(int rank, std::int64_t step, Activity activity) {
    RankView& view = views_[at(rank)];
    view.standing.step = step;
    view.standing.activity = activity;
    ++view.heartbeat;
    view.operation.waits_since = 0;
  }
  // The rank waits for `peer` in all_reduce number `number`.
  void wait(int rank, int peer, std::uint64_t number = 7) {
    RankView& view = views_[at(rank)];
    ++view.heartbeat;
    view.operation = {.name = "all_reduce",
                      .group = "dp",
                      .number = number,
                      .waits_since = now_.count(),
                      .peer = peer};
    state(rank, Kind::kSleeps);
  }
  void state(int rank, Kind kind) { states_[at(rank)].kind = kind; }
  void use_cpu(int rank, Nanos time) { states_[at(rank)].cpu += time; }
  void replace(int rank) {
    views_[at(rank)].pid += 100;
    views_[at(rank)].heartbeat = 1;
  }

  HangWatch::Seen look(Nanos after = HangWatch::kPeriod) {
    now_ += after;
    auto views = views_;
    auto seen =
        watch_.look(now_, views, [&](RankView& view) { view.thread = states_[at(view.rank)]; });
    for (const Hang& hang : seen.hangs)
      if (hang.is_new) named.push_back(hang);
    return seen;
  }
  // All ranks make `count` steps, each between two looks.
  void step(int count = 1) {
    for (int i = 0; i < count; ++i) {
      ++step_;
      for (int rank = 0; rank < static_cast<int>(views_.size()); ++rank) {
        state(rank, Kind::kRuns);
        use_cpu(rank, 50ms);
        enter(rank, step_, Activity::kForward);
      }
      look();
    }
  }
  // Looks until a hang is named; the time that it took, or `most`.
  Nanos until_named(
      Nanos most, const std::function<void()>& each = [] {}) {
    const Nanos begin = now_;
    while (named.empty() && now_ - begin < most) {
      each();
      look();
    }
    return now_ - begin;
  }
  Nanos now() const { return now_; }
  std::int64_t current_step() const { return step_; }

  std::vector<Hang> named;

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  HangWatch watch_;
  std::vector<RankView> views_;
  std::vector<ThreadState> states_;
  Nanos now_ = 1000s;
  std::int64_t step_ = 0;
};

TEST(HangWatch, NamesAStoppedRankInTimeWithTheOperationThatAnotherOneWaitsIn) {
  for (const Kind kind : {Kind::kStopped, Kind::kTraced, Kind::kFrozen}) {
    Node node(3);
    node.step(3);
    node.state(1, kind);
    node.wait(0, 1, 42);
    node.wait(2, 1, 42);
    EXPECT_LE(node.until_named(10s), 1500ms);
    ASSERT_EQ(node.named.size(), 1u);
    const Hang& hang = node.named[0];
    EXPECT_EQ(hang.how, How::kHeld);
    EXPECT_EQ(hang.rank, 1);
    EXPECT_EQ(hang.waiting, 0);
    EXPECT_EQ(hang.operation.name.str(), "all_reduce");
    EXPECT_EQ(hang.operation.number, 42u);
    EXPECT_FALSE(hang.is_certain());
  }
}

TEST(HangWatch, NamesAStoppedRankInAnyActivityAndIfNobodyWaitsForIt) {
  for (const Activity activity : {Activity::kInit, Activity::kData, Activity::kEvaluation}) {
    Node node(2);
    node.step(2);
    node.enter(1, 3, activity);
    node.state(1, Kind::kStopped);
    EXPECT_LE(node.until_named(10s), 2100ms);
    ASSERT_EQ(node.named.size(), 1u);
    EXPECT_EQ(node.named[0].rank, 1);
    EXPECT_EQ(node.named[0].waiting, -1);
  }
}

TEST(HangWatch, NamesTheStoppedRankAlthoughItWaitedForAnotherOne) {
  Node node(2);
  node.step(20);
  node.wait(1, 0);
  node.state(1, Kind::kStopped);
  node.enter(0, 21, Activity::kForward);
  node.wait(0, 1);
  node.until_named(10s);
  ASSERT_EQ(node.named.size(), 1u);
  EXPECT_EQ(node.named[0].rank, 1);
  EXPECT_EQ(node.named[0].waiting, 0);
}

// Stopped and continued, so that it gets 20 % of a processor.
TEST(HangWatch, DoesNotNameARankThatIsStoppedFourFifthsOfTheTime) {
  Node node(2);
  node.step(20);
  std::int64_t step = 20;
  for (int second = 0; second < 600; ++second) {
    node.state(1, Kind::kStopped);
    node.wait(0, 1);
    for (int i = 0; i < 8; ++i) node.look();
    node.state(1, Kind::kRuns);
    node.use_cpu(1, 200ms);
    for (int i = 0; i < 2; ++i) node.look();
    if (second % 4 == 3) {  // a step takes 800 ms of processor time
      node.enter(1, ++step, Activity::kForward);
      node.enter(0, step, Activity::kForward);
    }
  }
  EXPECT_THAT(node.named, testing::IsEmpty());
}

TEST(HangWatch, NamesAnEndlessLoopInTimeAndNotARankThatIsAboutToFinish) {
  Node node(2);
  node.step(20);
  node.enter(1, 21, Activity::kForward);
  node.wait(0, 1);
  const auto spin = [&] { node.use_cpu(1, 100ms); };
  for (int i = 0; i < 13; ++i) {
    spin();
    node.look();
  }
  EXPECT_THAT(node.named, testing::IsEmpty());
  EXPECT_LE(1300ms + node.until_named(10s, spin), 1800ms);
  ASSERT_EQ(node.named.size(), 1u);
  EXPECT_EQ(node.named[0].how, How::kBusy);
  EXPECT_EQ(node.named[0].rank, 1);
}

// Quota of its control group: runnable all the time, and it runs 20 % of it.
TEST(HangWatch, DoesNotNameARankWithAFifthOfAProcessor) {
  Node node(2);
  node.step(20);
  for (std::int64_t step = 21; step < 221; ++step) {  // 500 ms of processor time each
    node.enter(1, step, Activity::kForward);
    node.enter(0, step, Activity::kForward);
    node.wait(0, 1);
    for (int i = 0; i < 25; ++i) {
      node.use_cpu(1, 20ms);
      node.look();
    }
  }
  EXPECT_THAT(node.named, testing::IsEmpty());
  // The same rank in an endless loop.
  node.enter(1, 300, Activity::kForward);
  node.wait(0, 1);
  EXPECT_LE(node.until_named(60s, [&] { node.use_cpu(1, 20ms); }), 15s);
}

TEST(HangWatch, DoesNotNameARankThatGetsNoProcessor) {
  Node node(2);
  node.step(20);
  node.enter(1, 21, Activity::kForward);
  node.wait(0, 1);
  EXPECT_EQ(node.until_named(60s), 60s);
}

TEST(HangWatch, NamesARankThatSleepsInTime) {
  for (const Kind kind : {Kind::kSleeps, Kind::kBlocked}) {
    Node node(2);
    node.step(20);
    node.enter(1, 21, Activity::kBackward);
    node.state(1, kind);
    node.wait(0, 1);
    const Nanos took = node.until_named(10s);
    EXPECT_GE(took, 1500ms);
    EXPECT_LE(took, 1900ms);
    ASSERT_EQ(node.named.size(), 1u);
    EXPECT_EQ(node.named[0].how, How::kAsleep);
    EXPECT_EQ(node.named[0].rank, 1);
  }
}

// On a GPU, a thread sleeps while it computes.
TEST(HangWatch, LearnsThatRanksSleepLongInEachStep) {
  Node node(2);
  node.step(20);
  std::int64_t step = 20;
  const auto sleepy_step = [&](int looks) {
    node.enter(1, ++step, Activity::kForward);
    node.state(1, Kind::kSleeps);
    node.wait(0, 1);
    for (int i = 0; i < looks; ++i) node.look();
    node.enter(0, step, Activity::kForward);
  };
  for (int i = 0; i < 3; ++i) sleepy_step(14);  // below the least limit
  for (int i = 0; i < 20; ++i) sleepy_step(30);
  EXPECT_THAT(node.named, testing::IsEmpty());
  sleepy_step(150);
  EXPECT_EQ(node.named.size(), 1u);
}

TEST(HangWatch, AllowsMoreInTheFirstSteps) {
  for (const auto& kind : {Kind::kRuns, Kind::kSleeps}) {
    Node node(2);
    node.step(5);
    node.enter(1, 6, Activity::kForward);
    node.state(1, kind);
    node.wait(0, 1);
    const Nanos took = node.until_named(60s, [&] {
      if (kind == Kind::kRuns) node.use_cpu(1, 100ms);
    });
    EXPECT_GE(took, 10s);
    EXPECT_LE(took, 11s);
  }
}

TEST(HangWatch, CallsARankSlowThatLoadsEvaluatesSavesOrRecovers) {
  for (const Activity activity : {Activity::kInit, Activity::kData, Activity::kEvaluation,
                                  Activity::kCheckpoint, Activity::kRecovery, Activity::kEnd}) {
    const bool recovers = activity == Activity::kRecovery;
    Node node(2);
    node.step(20);
    node.enter(1, 21, activity);
    node.state(1, Kind::kBlocked);
    node.wait(0, 1);
    const Nanos took = node.until_named(120s);
    EXPECT_GE(took, recovers ? 10s : 30s);
    EXPECT_LE(took, recovers ? 11s : 31s) << to_string(activity);
    ASSERT_EQ(node.named.size(), 1u) << to_string(activity);
    EXPECT_EQ(node.named[0].how, How::kSlow);
    EXPECT_EQ(node.named[0].rank, 1);
  }
}

TEST(HangWatch, NamesTheEndOfAChainOfWaitingRanks) {
  Node node(4);
  node.step(20);
  node.enter(2, 21, Activity::kBackward);
  node.wait(3, 0, 9);
  node.wait(0, 1, 9);
  node.wait(1, 2, 8);
  node.state(2, Kind::kSleeps);
  node.until_named(10s);
  ASSERT_EQ(node.named.size(), 1u);
  EXPECT_EQ(node.named[0].rank, 2);
  EXPECT_EQ(node.named[0].waiting, 1);
  EXPECT_EQ(node.named[0].operation.number, 8u);
}

TEST(HangWatch, SaysThatARankOfAnotherNodeIsAwaited) {
  Node node(2);
  node.step(20);
  node.wait(0, 5);
  node.wait(1, 0);
  EXPECT_GE(node.until_named(60s), 10s);
  ASSERT_EQ(node.named.size(), 1u);
  EXPECT_EQ(node.named[0].how, How::kElsewhere);
  EXPECT_EQ(node.named[0].rank, 5);
  EXPECT_EQ(node.named[0].waiting, 0);
}

TEST(HangWatch, NamesACycleOfWaitingRanksOnce) {
  Node node(4);
  node.step(20);
  node.wait(3, 1);
  node.wait(1, 2);
  node.wait(2, 3);
  node.wait(0, 1);  // not in the cycle
  EXPECT_GE(node.until_named(60s), 10s);
  for (int i = 0; i < 50; ++i) node.look();
  ASSERT_EQ(node.named.size(), 1u);
  EXPECT_EQ(node.named[0].how, How::kCycle);
  EXPECT_EQ(node.named[0].rank, 1);
}

TEST(HangWatch, NamesARankOnceAndSaysWhenItGoesOn) {
  Node node(2);
  node.step(20);
  node.wait(0, 1);
  node.state(1, Kind::kStopped);
  for (int i = 0; i < 50; ++i) node.look();
  EXPECT_EQ(node.named.size(), 1u);
  auto seen = node.look();
  ASSERT_EQ(seen.hangs.size(), 1u);  // it lasts
  EXPECT_FALSE(seen.hangs[0].is_new);
  EXPECT_TRUE(seen.hangs[0].is_certain());
  node.state(1, Kind::kRuns);
  node.enter(1, 22, Activity::kForward);
  seen = node.look();
  EXPECT_THAT(seen.hangs, testing::IsEmpty());
  ASSERT_EQ(seen.resumed.size(), 1u);
  EXPECT_EQ(seen.resumed[0].rank, 1);
  EXPECT_GE(seen.resumed[0].lasts, 5s);
  EXPECT_THAT(node.look().resumed, testing::IsEmpty());
}

TEST(HangWatch, ForgetsWhatItSawBeforeTheLauncherWasStoppedItself) {
  Node node(2);
  node.step(20);
  node.wait(0, 1);
  node.state(1, Kind::kStopped);
  for (int i = 0; i < 8; ++i) node.look();
  node.look(100s);
  EXPECT_THAT(node.named, testing::IsEmpty());
  node.state(1, Kind::kRuns);
  node.step();
  EXPECT_THAT(node.named, testing::IsEmpty());
}

TEST(HangWatch, ANewProcessOfARankIsAtItsStart) {
  Node node(2);
  node.step(20);
  node.replace(1);
  node.wait(0, 1);
  node.enter(1, 21, Activity::kForward);
  node.state(1, Kind::kSleeps);
  EXPECT_GE(node.until_named(60s), 10s);
}

TEST(HangWatch, ARankIsCertainToHangAfterTwiceTheLimit) {
  Node node(2);
  node.step(20);
  node.enter(1, 21, Activity::kForward);
  node.state(1, Kind::kSleeps);
  node.wait(0, 1);
  EXPECT_LE(node.until_named(10s), 1900ms);
  const Nanos begin = node.now();
  while (!node.look().hangs.at(0).is_certain()) {
  }
  EXPECT_LE(node.now() - begin, 1600ms);
}

TEST(UsualTime, IsFourTimesTheSecondLongestOfTheLastTimes) {
  UsualTime usual;
  EXPECT_EQ(usual.limit(1500ms), 1500ms);
  usual.add(20s);
  EXPECT_EQ(usual.limit(1500ms), 1500ms);  // an accident
  usual.add(1s);
  EXPECT_EQ(usual.limit(1500ms), 4s);
  usual.add(3s);
  EXPECT_EQ(usual.limit(1500ms), 12s);
  for (std::size_t i = 0; i < UsualTime::kKept; ++i) usual.add(500ms);
  EXPECT_EQ(usual.limit(1500ms), 2s);
}

}  // namespace
}  // namespace weft::launch::hang_watch_test
