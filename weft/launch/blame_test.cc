// Who is to blame for the end of a job, and the report of it.
#include "weft/launch/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "weft/launch/internal/report.h"
#include "weft/launch/testing/rank_ends.h"

namespace weft::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::EndsWith;

TEST(FirstFailure, IsTheEarliest) {
  EXPECT_EQ(first_failure(situation({exited(1, seconds(2)), exited(3, seconds(1)),
                                     exited(0, seconds(0)), std::nullopt})),
            1);
  EXPECT_EQ(first_failure(situation({exited(0, seconds(0)), std::nullopt})), std::nullopt);
}

TEST(FirstFailure, IsNotARankThatOnlyLostItsPeer) {
  EXPECT_EQ(first_failure(situation(
                {exited(201, seconds(1)), exited(202, seconds(1)), exited(3, seconds(2))})),
            2);
  EXPECT_EQ(first_failure(situation({exited(202, seconds(2)), exited(201, seconds(1))})), 1);
}

TEST(FirstFailure, IsNotARankThatWasToldToStop) {
  auto seen = situation({killed(SIGTERM, seconds(6)), exited(201, seconds(7))});
  seen.ranks[0]->told = true;
  EXPECT_EQ(first_failure(seen), 1);
}

TEST(FirstFailure, IsTheKilledOneOfTwoSimultaneousFailures) {
  EXPECT_EQ(first_failure(situation({exited(1, seconds(1)), killed(SIGKILL, seconds(1))})), 1);
}

TEST(FirstFailure, IsNotARankThatAbortedOnAnErrorThatAnotherRankCaused) {
  const ExitStatus abort{true, SIGABRT};
  EXPECT_EQ(first_failure(
                situation({waited(Errc::kPeerLost, 1, seconds(1), abort), exited(3, seconds(2))})),
            1);
}

TEST(Blame, IsTheRankThatFailedByItself) {
  const auto found = blame(situation({exited(201, seconds(1)), exited(3, seconds(2))}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kFailed);
  EXPECT_EQ(found->rank, 1);
  EXPECT_FALSE(blame(situation({exited(0, seconds(1)), std::nullopt})));
}

TEST(Blame, FollowsWhoWaitedForWhomToItsEnd) {
  // 4 waits for 6, 6 for 5; 5 does nothing and is told to stop.
  auto seen = situation({waited(Errc::kTimeout, 6, seconds(1), {false, 200}),
                         told(killed(SIGTERM, seconds(8))),
                         waited(Errc::kTimeout, 5, seconds(2), {false, 200})});
  seen.first_rank = 4;
  const auto found = blame(seen);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kSilent);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->waiting, 2);
  internal::Failure failure;
  failure.situation = seen;
  EXPECT_THAT(internal::failure_report(failure),
              EndsWith("weft: rank 5 did not answer; rank 6 waited for it: Timeout text\n"));
}

TEST(Blame, IsTheRankThatASignalHasStopped) {
  auto seen = situation({waited(Errc::kTimeout, 1, seconds(1), {false, 200}),
                         waited(Errc::kAborted, 0, seconds(1), {false, 202}),
                         told(killed(SIGTERM, seconds(8)))});
  seen.stopped = {2};
  const auto found = blame(seen);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kStopped);
  EXPECT_EQ(found->rank, 2);
  internal::Failure failure;
  failure.situation = seen;
  EXPECT_THAT(internal::failure_report(failure),
              EndsWith("weft: rank 2 was stopped by a signal, such as SIGSTOP; rank 0 waited for "
                       "it: Timeout text\n"));
}

TEST(Blame, IsTheRankThatLeftEarly) {
  const auto found = blame(
      situation({waited(Errc::kPeerLost, 1, seconds(2), {false, 201}), exited(0, seconds(1))}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kLeft);
  EXPECT_EQ(found->rank, 1);
}

TEST(Blame, EndsInACycleWithTheFirstFailure) {
  const auto found = blame(situation({waited(Errc::kTimeout, 1, seconds(2), {false, 200}),
                                      waited(Errc::kTimeout, 0, seconds(1), {false, 200})}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kFailed);
  EXPECT_EQ(found->rank, 1);
}

TEST(Blame, MayBeARankOfAnotherNode) {
  auto seen = situation({waited(Errc::kTimeout, 7, seconds(2), {false, 200})});
  const auto found = blame(seen);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->how, Blame::How::kSilent);
  EXPECT_EQ(found->rank, 7);
}

TEST(FailureReport, EndsWithTheFirstFailedRankItsCauseAndItsLog) {
  internal::Failure failure;
  failure.situation = situation({exited(201, seconds(2)), exited(3, seconds(1))});
  failure.situation.first_rank = 4;
  failure.situation.ranks[1]->cause = {"no such file"};
  failure.last_lines = {"one", "two"};
  failure.log = "logs/1/stderr.log";
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 4 ended as a consequence: exit code 201 (weft: PeerLost)\n"
            "weft: last lines of rank 5 on stderr:\n"
            "    one\n"
            "    two\n"
            "weft: rank 5 failed first: exit code 3: no such file (log: logs/1/stderr.log)\n");
}

TEST(FailureReport, OfAMistakeInTheInputLeavesOutTheRanksThatNoticedIt) {
  internal::Failure failure;
  failure.situation = situation({exited(2, seconds(1)), exited(201, seconds(2))});
  failure.situation.ranks[0]->cause = {"BadConfig: no such file"};
  failure.situation.ranks[0]->cause->code = Errc::kBadConfig;
  failure.situation.ranks[1]->cause = {"PeerLost: rank 0 has left"};
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 0 failed first: exit code 2: BadConfig: no such file\n");
}

TEST(FailureReport, ReportsTheSameErrorOfSeveralRanksOnce) {
  internal::Failure failure;
  failure.situation =
      situation({exited(2, seconds(1)), exited(2, seconds(2)), exited(202, seconds(2)),
                 exited(202, seconds(3)), exited(2, seconds(3)), exited(2, seconds(4))});
  const auto aborted = [](int rank) {
    return "Aborted: all_reduce, rank " + std::to_string(rank) + ": rank 0 has left";
  };
  const std::string causes[] = {"no data on rank 0", "no data on rank 1", aborted(2),
                                aborted(3),          "another mistake",   "no data on rank 5"};
  for (std::size_t i = 0; i < 6; ++i) failure.situation.ranks[i]->cause = {causes[i]};
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 4 failed later: exit code 2: another mistake\n"
            "weft: ranks 2 and 3 ended as a consequence: exit code 202 (weft: Aborted): Aborted: "
            "all_reduce, rank 2: rank 0 has left\n"
            "weft: ranks 0, 1 and 5 failed: exit code 2: no data on rank 0\n");
}

TEST(FailureReport, ReportsAnErrorThatNamesARankOnce) {
  internal::Failure failure;
  auto end = exited(2, seconds(1));
  end.cause = {"not saved: rank 0: disk full"};
  failure.situation = situation({end, end});
  EXPECT_EQ(internal::failure_report(failure),
            "weft: ranks 0 and 1 failed: exit code 2: not saved: rank 0: disk full\n");
}

TEST(FailureReport, PrintsManyRanksAsARange) {
  internal::Failure failure;
  auto end = exited(2, seconds(1));
  end.cause = {"no data"};
  failure.situation.ranks.assign(16, end);
  EXPECT_EQ(internal::failure_report(failure),
            "weft: ranks 0 to 15 failed: exit code 2: no data\n");
}

TEST(FailureReport, ExplainsAKill) {
  internal::Failure failure;
  failure.situation = situation({killed(SIGKILL, seconds(1))});
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 0 failed first: SIGKILL (signal 9): killed by another process or the "
            "kernel; check for out of memory (dmesg)\n");
  failure.out_of_memory = true;
  EXPECT_EQ(internal::failure_report(failure),
            "weft: rank 0 failed first: SIGKILL (signal 9): the kernel killed it because memory "
            "ran out; use a smaller batch, fewer ranks or a "
            "higher memory limit\n");
}

TEST(FailureReport, ReportsThatItWasStopped) {
  internal::Failure failure;
  failure.situation = situation({killed(SIGINT, seconds(1))});
  failure.situation.ranks[0]->told = true;
  failure.stop_signal = SIGINT;
  EXPECT_EQ(internal::failure_report(failure),
            "weft: stopped by SIGINT; rank 0 ended first: SIGINT (signal 2)\n");
}

}  // namespace
}  // namespace weft::launch
