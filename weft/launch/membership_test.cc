#include "weft/launch/membership.h"

#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"
#include "weft/launch/testing/cluster.h"

namespace weft::launch {
namespace {

using Phase = RankPhase;
using testing_nodes::Cluster;

TEST(Membership, WaitsForTheLeastNodesAndThenForMoreUntilTheLastCall) {
  Cluster job({.min_nodes = 2, .max_nodes = 3, .max_ranks = 6});
  job.join(0, 2);
  EXPECT_FALSE(job.settle(Phase::kMember, true).formed);
  job.join(1, 2);
  EXPECT_FALSE(job.settle().formed);
  EXPECT_TRUE(job.settle(Phase::kMember, true).formed);
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1, 1}));
  for (const auto& [rank, place] : job.membership().ranks) EXPECT_TRUE(place.first);
}

TEST(Membership, FormsAtOnceWhenAllNodesAreThere) {
  Cluster job({.min_nodes = 1, .max_nodes = 2, .max_ranks = 4});
  job.join(0, 1);
  job.join(1, 3);
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 1, 1, 1}));
}

TEST(Membership, GoesOnWithoutTheRanksOfALostNodeWhileEnoughAreLeft) {
  Cluster job({.min_nodes = 3, .max_nodes = 3, .min_ranks = 3, .max_ranks = 6});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  job.lose(0);
  EXPECT_EQ(job.settle().gone, (std::set<int>{0, 1}));
  EXPECT_EQ(job.places(), (std::vector<int>{1, 1, 2, 2}));
  EXPECT_EQ(job.membership().end, "");
  job.lose(1);
  EXPECT_NE(job.settle().end.find("fewer than 3 ranks are left"), std::string::npos);
}

TEST(Membership, EndsWhenALostNodeCannotBeReplaced) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .max_ranks = 2, .max_replacements = 9});
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  job.lose(1);
  EXPECT_EQ(job.settle().end,
            "rank 1 is lost: node 1 is lost or cannot be reached; it cannot be replaced");
  EXPECT_EQ(job.membership().end_code, exit_code(Errc::kPeerLost));
}

TEST(Membership, ReplacesTheRanksOfALostNodeOnASpareOne) {
  Cluster job({.min_nodes = 3, .max_nodes = 3, .max_ranks = 4, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1, 1}));  // node 2 is a spare
  job.lose(0);
  // The others wait for ranks 0 and 1, which nobody needs to announce.
  const Membership replaced = job.settle(Phase::kStarting);
  EXPECT_EQ(job.places(), (std::vector<int>{2, 2, 1, 1}));
  EXPECT_TRUE(replaced.ranks.at(0).replaces);
  EXPECT_FALSE(replaced.ranks.at(0).first);
  EXPECT_EQ(replaced.ranks.at(0).incarnation, 5);
  EXPECT_EQ(replaced.announcement.number, 0);
  EXPECT_EQ(replaced.replacements, 2);
  for (auto& [rank, report] : job.node(2).ranks) report.phase = Phase::kMember;
  EXPECT_FALSE(job.settle().ranks.at(0).replaces);
}

TEST(Membership, ReplacesARankOnItsOwnNodeAsOftenAsAllowed) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .max_ranks = 2, .max_replacements = 1});
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  job.end_rank(1, Phase::kLost, 139, "SIGSEGV");
  EXPECT_EQ(job.settle().end, "");
  EXPECT_EQ(job.places(), (std::vector<int>{0, 1}));
  EXPECT_EQ(job.membership().notes.rbegin()->second,
            "rank 1 is lost: SIGSEGV; a new process on node 1 replaces it (1 of 1)");
  job.end_rank(1, Phase::kLost, 139, "SIGSEGV");
  EXPECT_EQ(job.settle().end, "rank 1 is lost: SIGSEGV; it cannot be replaced");
  EXPECT_EQ(job.membership().end_code, 139);
}

TEST(Membership, EndsAtOnceWhenAProgramFailsThatWouldFailAgain) {
  Cluster job(
      {.min_nodes = 2, .max_nodes = 2, .min_ranks = 1, .max_ranks = 2, .max_replacements = 9});
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  job.end_rank(0, Phase::kFailed, 2, "exit code 2");
  EXPECT_EQ(job.settle().end, "rank 0 failed first: exit code 2");
  EXPECT_EQ(job.membership().end_code, 2);
}

TEST(Membership, StartsNoNewcomersAfterThreeInARowThatNeverJoined) {
  Cluster job(
      {.min_nodes = 1, .max_nodes = 1, .min_ranks = 1, .max_ranks = 2, .max_replacements = 99});
  job.join(0, 2);
  job.settle();
  job.end_rank(1, Phase::kLost, 1);
  for (int tries = 0; tries < kMaxNeverJoined; ++tries) {
    job.settle(Phase::kStarting);
    ASSERT_TRUE(job.membership().ranks.contains(1)) << tries;
    EXPECT_EQ(job.membership().ranks.at(1).tries, tries);
    job.end_rank(1, Phase::kLost, 1);
  }
  job.settle();
  EXPECT_EQ(job.places(), std::vector<int>{0});
  EXPECT_EQ(job.membership().end, "");
  // Somebody asks again.
  job.node(0).wanted = {.serial = 1, .ranks = 2};
  EXPECT_EQ(job.settle().ranks.size(), 2U);
}

TEST(Membership, StartsAllRanksAgainWhenNoneIsLeftThatHasTheState) {
  Cluster job({.min_nodes = 3, .max_nodes = 3, .max_ranks = 2, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 1);
  job.settle();
  job.node(0).run = "/runs/1";
  job.settle();
  job.lose(0);
  job.end_rank(1, Phase::kLost, 137, "SIGKILL");
  const Membership& membership = job.settle();
  EXPECT_EQ(membership.end, "");
  EXPECT_EQ(membership.attempt, 1);
  EXPECT_EQ(membership.run, "/runs/1");
  EXPECT_EQ(job.places(), (std::vector<int>{1, 2}));
  EXPECT_TRUE(membership.ranks.at(0).first);
}

TEST(Membership, StartsAllRanksAgainOnlyThreeTimesWithoutAnotherCheckpoint) {
  Cluster job({.min_nodes = 1, .max_nodes = 1, .max_ranks = 2, .max_replacements = 9});
  job.join(0, 2);
  job.settle();
  job.node(0).run = "/runs/1";
  job.node(0).saved = {1, "step-4"};
  job.settle();
  const auto lose_all = [&] {
    for (const int rank : {0, 1}) job.end_rank(rank, Phase::kLost, 137, "SIGKILL");
    return job.settle();
  };
  for (int restores = 1; restores <= kMaxRestores; ++restores)
    EXPECT_EQ(lose_all().restores, restores);
  job.node(0).saved = {2, "step-8"};
  EXPECT_EQ(lose_all().restores, 1);
  for (int restores = 2; restores <= kMaxRestores; ++restores)
    EXPECT_EQ(lose_all().restores, restores);
  EXPECT_EQ(job.membership().attempt, 2 * kMaxRestores);
  EXPECT_EQ(lose_all().end, "rank 0 is lost: SIGKILL");
}

TEST(Membership, GivesARankWhoseProcessCannotBeStartedToAnotherNode) {
  const MembershipPolicy policy{
      .min_nodes = 3, .max_nodes = 3, .max_ranks = 2, .max_replacements = 9};
  Cluster job(policy);
  for (int node = 0; node < 3; ++node) job.join(node, 1);
  job.settle();
  job.end_rank(1, Phase::kLost, 137, "SIGKILL");
  const Membership placed = next_membership(job.membership(), job.reports(), policy, false);
  ASSERT_EQ(placed.ranks.at(1).node, 1);
  job.node(1).starts_fail = true;
  const Membership moved = next_membership(placed, job.reports(), policy, false);
  EXPECT_EQ(moved.ranks.at(1).node, 2);
  EXPECT_TRUE(moved.ranks.at(1).replaces);
  EXPECT_GT(moved.ranks.at(1).incarnation, placed.ranks.at(1).incarnation);
  EXPECT_EQ(moved.replacements, 1);
  EXPECT_EQ(moved.notes.rbegin()->second,
            "rank 1 cannot be started on node 1: it is started on node 2");
  job.node(2).starts_fail = true;
  EXPECT_EQ(next_membership(placed, job.reports(), policy, false), placed) << "it waits";
}

TEST(Membership, PlacesLostRanksWhereProcessesCanBeStarted) {
  Cluster job({.min_nodes = 3, .max_nodes = 3, .max_ranks = 2, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 1);
  job.settle();
  job.node(1).starts_fail = true;
  job.end_rank(1, Phase::kLost, 137, "SIGKILL");
  EXPECT_EQ(job.settle().ranks.at(1).node, 2);
  job.lose(2);
  EXPECT_EQ(job.settle().ranks.at(1).node, 1) << "no other node has a free slot";
  EXPECT_EQ(job.membership().end, "");
}

TEST(Membership, NeverStartsAgainWhileAllRanksMayTrainOnNodesThatCannotBeReached) {
  Cluster job({.min_nodes = 3, .max_nodes = 3, .max_ranks = 2, .max_replacements = 9});
  for (int node = 0; node < 3; ++node) job.join(node, 2);
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0}));
  job.lose(0);
  EXPECT_NE(job.settle().end.find("node 0 is lost or cannot be reached"), std::string::npos);
}

TEST(Membership, StartsAllRanksAgainWhenOneIsKilledBeforeAllHaveMet) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .max_ranks = 2, .max_replacements = 9});
  job.join(0, 1);
  job.join(1, 1);
  job.settle(Phase::kStarting);
  // The other one has met it already, or not.
  for (const Phase phase : {Phase::kMember, Phase::kStarting}) {
    const int before = job.membership().attempt;
    job.end_rank(0, Phase::kLost, 137, "SIGKILL");
    job.end_rank(1, phase);
    const Membership& membership = job.settle(Phase::kStarting);
    EXPECT_EQ(membership.end, "");
    EXPECT_EQ(membership.attempt, before + 1);
    EXPECT_NE(membership.notes.rbegin()->second.find("before all ranks have met"),
              std::string::npos);
  }
}

TEST(Membership, AProgramThatFailsAtItsStartIsNotStartedAgain) {
  Cluster job({.min_nodes = 1, .max_nodes = 1, .max_ranks = 2, .max_replacements = 9});
  job.join(0, 2);
  job.settle(Phase::kStarting);
  job.end_rank(1, Phase::kLost, 7, "exit code 7");
  EXPECT_EQ(job.settle().end, "rank 1 is lost: exit code 7");
}

TEST(Membership, AnnouncesAdditionalRanksOnceAllOfThemWait) {
  const MembershipPolicy policy{.min_nodes = 1, .max_nodes = 3, .max_ranks = 6};
  Cluster job(policy);
  job.join(0, 2);
  job.settle(Phase::kMember, true);
  job.join(1, 1);
  job.join(2, 1);
  EXPECT_EQ(job.settle(Phase::kStarting).announcement.number, 0);
  job.node(1).ranks.begin()->second.phase = Phase::kWaiting;
  EXPECT_EQ(next_membership(job.membership(), job.reports(), policy, false).announcement.number, 0);
  job.node(2).ranks.begin()->second.phase = Phase::kWaiting;
  const auto told = next_membership(job.membership(), job.reports(), policy, false).announcement;
  EXPECT_EQ(told, (Announcement{1, 4, {2, 3}}));
  // Once they have joined, nothing more is to be done.
  job.settle(Phase::kMember);
  EXPECT_EQ(job.membership().announcement.ranks, 4);
  EXPECT_EQ(job.membership().announcement.newcomers, std::set<int>{});
}

TEST(Membership, DoesNotMissAnAdditionalRankThatIsLostBeforeItHasJoined) {
  Cluster job({.min_nodes = 1, .max_nodes = 2, .max_ranks = 4});
  job.join(0, 2);
  job.settle(Phase::kMember, true);
  job.join(1, 1);
  job.settle(Phase::kStarting);
  job.lose(1);
  const Membership membership = job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0}));
  EXPECT_EQ(membership.gone, std::set<int>{2});
  EXPECT_EQ(membership.end, "");
}

TEST(Membership, MovesRanksAwayFromANodeThatFailsAgainAndAgain) {
  const MembershipPolicy policy{
      .min_nodes = 2, .max_nodes = 2, .max_ranks = 3, .max_replacements = 9};
  Cluster job(policy);
  job.join(0, 2);
  job.join(1, 3);
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1}));
  job.node(0).failures = kMaxFailures;
  job.settle();
  EXPECT_EQ(job.membership().aside, std::set<int>{0});
  EXPECT_EQ(job.places(), (std::vector<int>{1, 1, 1}));
  // It is used again ten minutes later.
  job.node(0).failures = 0;
  EXPECT_EQ(job.settle().aside, std::set<int>{});
}

TEST(Membership, ChangesToTheNumberOfRanksThatWasAskedFor) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .min_ranks = 2, .max_ranks = 4});
  job.join(0, 2);
  job.join(1, 2);
  job.settle();
  job.node(1).wanted = {.serial = 5, .ranks = 3};
  job.settle();
  EXPECT_EQ(job.places(), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(job.membership().announcement, (Announcement{1, 3, {}}));
  job.node(0).wanted = {.serial = 4, .ranks = 2};  // an older request
  EXPECT_EQ(job.settle().wanted.ranks, 3);
  job.node(0).wanted = {.serial = 6, .ranks = 4};
  job.settle(Phase::kWaiting);
  EXPECT_EQ(job.membership().announcement, (Announcement{2, 4, {3}}));
}

TEST(Membership, ChangesNothingMoreOnceARankHasEndedItsProgram) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .max_ranks = 2, .max_replacements = 9});
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  job.end_rank(0, Phase::kDone);
  EXPECT_TRUE(job.settle().done);
  job.lose(1);
  const Membership before = job.membership();
  EXPECT_EQ(job.settle(), before);
}

TEST(Membership, EndsWhenALauncherIsToldToStop) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .max_ranks = 2});
  job.join(0, 1);
  job.join(1, 1);
  job.settle();
  job.node(1).stop = {"SIGTERM", 143, 30'000};
  EXPECT_EQ(job.settle().end, "stopped by SIGTERM");
  EXPECT_EQ(job.membership().stop, job.node(1).stop);
  EXPECT_EQ(job.membership().stop_node, 1);
  EXPECT_EQ(job.membership().end_code, 143);
  // The checkpoint that the ranks save then.
  job.node(0).saved = {3, "step-7"};
  EXPECT_EQ(job.settle().saved.folder, "step-7");
}

TEST(Membership, KnowsTheNewestCheckpointWhereverItsRankRuns) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .max_ranks = 2});
  job.join(0, 1);
  job.join(1, 1);
  job.node(0).saved = {4, "step-4"};
  job.node(1).saved = {3, "step-9"};
  EXPECT_EQ(job.settle().saved.folder, "step-4");
  job.node(1).saved = {5, "step-2"};  // all ranks started again, from an older one
  EXPECT_EQ(job.settle().saved.folder, "step-2");
  job.lose(1);
  EXPECT_EQ(job.settle().saved.folder, "step-2");
}

TEST(Membership, NamesEveryRankOfALostNode) {
  Cluster job({.min_nodes = 2, .max_nodes = 2, .min_ranks = 1, .max_ranks = 24});
  job.join(0, 4);
  job.join(1, 20);
  job.settle();
  job.lose(1);
  const Membership membership = job.settle();
  ASSERT_EQ(membership.notes.size(), 20U);
  EXPECT_EQ(membership.notes.at(1),
            "rank 4 is lost: node 1 is lost or cannot be reached; the others go on without it");
  job.node(0).wanted = {1, 3};
  EXPECT_EQ(job.settle().notes.size(), 16U) << "of earlier changes, the latest are kept";
  EXPECT_EQ(job.membership().notes.at(21), "the job shall have 3 ranks");
}

TEST(Membership, HasNotesThatFitIntoAMessage) {
  Cluster job({.min_nodes = 1, .max_nodes = 1, .min_ranks = 1, .max_ranks = 200});
  job.join(0, 200);
  job.settle();
  for (int rank = 1; rank < 200; ++rank)
    job.end_rank(rank, Phase::kLost, 137, std::string(400, 'x'));
  std::size_t bytes = 0;
  for (const auto& [number, note] : job.settle().notes) bytes += note.size();
  EXPECT_GT(bytes, 30U << 10);
  EXPECT_LE(bytes, 32U << 10);
}

// A link takes 200 KiB at least.
TEST(MembershipText, OfANodeWithManyRanksThatFailedFitsIntoAMessage) {
  for (const int ranks : {1, 8, 256, 1000}) {
    const std::size_t length = longest_reason(static_cast<std::size_t>(ranks));
    NodeReport report{.host = "a"};
    for (int rank = 0; rank < ranks; ++rank)
      report.ranks[rank] = {rank, Phase::kFailed, std::string(length, '"'), 1};
    EXPECT_GE(length, 32u);
    EXPECT_LT(to_text(report).size(), 200u << 10) << ranks;
  }
  EXPECT_EQ(longest_reason(8), 400u);
}

TEST(Membership, SurvivesItsText) {
  Cluster job({.min_nodes = 1, .max_nodes = 3, .min_ranks = 1, .max_ranks = 6});
  for (int node = 0; node < 3; ++node) job.join(node, 1 + node);
  job.settle();
  job.lose(1);
  job.node(2).wanted = {3, 4};
  job.node(2).run = "/a \"run\"";
  job.node(2).saved = {2, "/a/ckpt"};
  job.node(0).leave = {"why", 143, 7};
  job.end_rank(5, Phase::kLost, 137, "killed");
  const Membership membership = job.settle();
  EXPECT_EQ(membership_of(to_text(membership)), membership);
  for (const NodeReport& report : job.reports()) EXPECT_EQ(node_report_of(to_text(report)), report);
  for (const char* text : {"", "[]", "{}", R"({"node": "x"})"}) {
    expect_refused([&] { membership_of(text); }, Errc::kCorrupt, "unreadable plan of the job");
    expect_refused([&] { node_report_of(text); }, Errc::kCorrupt, "unreadable report of a node");
  }
}

NodeReport whole_report() {
  return {.node = 3,
          .host = "a",
          .slots = 4,
          .failures = 2,
          .ranks = {{5, {6, Phase::kFailed, "killed", 137}}},
          .wanted = {7, 8},
          .run = "/run",
          .usable = rank_link::UsableRanks{2, 4, 8},
          .saved = {9, "/run/ckpt"},
          .stop = {"SIGTERM", 143, 1000},
          .leave = {"a notice", 144, 2000},
          .replicated = {1, 3},
          .servers_lost = "lost",
          .starts_fail = true,
          .holds_store = true,
          .left = true,
          .knows_all_left = true};
}

TEST(Membership, AReportIsAnObjectOfItsFields) {
  const NodeReport report = whole_report();
  EXPECT_EQ(to_text(report),
            R"({"failures":2,"holds_store":true,"host":"a","knows_all_left":true,)"
            R"("leave":{"code":144,"grace_ms":2000,"why":"a notice"},"left":true,"node":3,)"
            R"("ranks":{"5":{"code":137,"incarnation":6,"phase":5,"why":"killed"}},)"
            R"("replicated":[1,3],"run":"/run","saved":{"folder":"/run/ckpt","serial":9},)"
            R"("servers_lost":"lost","slots":4,"starts_fail":true,)"
            R"("stop":{"code":143,"grace_ms":1000,"why":"SIGTERM"},)"
            R"("usable":{"multiple":2,"replicas":8,"shards":4},"wanted":{"ranks":8,"serial":7}})");
  EXPECT_EQ(node_report_of(to_text(report)), report);
}

TEST(Membership, IsAnObjectOfItsFields) {
  const Membership membership{.policy = "--nnodes 2:3",
                              .formed = true,
                              .attempt = 1,
                              .restores = 28,
                              .wanted = {2, 3},
                              .replacements = 4,
                              .never_joined = 5,
                              .incarnations = 6,
                              .ranks = {{7, {8, 9, true, true, true, 10}}},
                              .gone = {11},
                              .aside = {12},
                              .leaving = {13},
                              .successors = {{14, {15, 16, false, false, false, 0}}},
                              .servers = {{17, 18}},
                              .announcement = {19, 20, {21}},
                              .usable = {2, 4, 8},
                              .run = "/run",
                              .saved = {22, "/run/ckpt"},
                              .saved_before = 29,
                              .notes = {{23, "rank 1 is lost"}},
                              .done = true,
                              .end = "stopped",
                              .end_code = 24,
                              .stop = {"SIGTERM", 25, 26},
                              .stop_node = 27};
  EXPECT_EQ(to_text(membership),
            R"({"announcement":{"newcomers":[21],"number":19,"ranks":20},"aside":[12],)"
            R"("attempt":1,"done":true,"end":"stopped","end_code":24,"formed":true,"gone":[11],)"
            R"("incarnations":6,"leaving":[13],"never_joined":5,"notes":{"23":"rank 1 is lost"},)"
            R"("policy":"--nnodes 2:3","ranks":{"7":{"first":true,"incarnation":9,"member":true,)"
            R"("node":8,"replaces":true,"tries":10}},"replacements":4,"restores":28,"run":"/run",)"
            R"("saved":{"folder":"/run/ckpt","serial":22},"saved_before":29,"servers":{"17":18},)"
            R"("stop":{"code":25,"grace_ms":26,"why":"SIGTERM"},"stop_node":27,)"
            R"("successors":{"14":{"first":false,"incarnation":16,"member":false,"node":15,)"
            R"("replaces":false,"tries":0}},"usable":{"multiple":2,"replicas":8,"shards":4},)"
            R"("wanted":{"ranks":3,"serial":2}})");
  EXPECT_EQ(membership_of(to_text(membership)), membership);
}

TEST(Membership, RefusesReportsWithPhasesAndNumbersOfRanksThatCannotBe) {
  const std::string text = to_text(whole_report());
  const auto refuse = [&](const std::string& good, const std::string& bad,
                          const std::string& what) {
    std::string changed = text;
    changed.replace(text.find(good), good.size(), bad);
    expect_refused([&] { node_report_of(changed); }, Errc::kCorrupt,
                   "unreadable report of a node: " + what);
  };
  refuse(R"("phase":5)", R"("phase":8)", "phase 8");
  refuse(R"("phase":5)", R"("phase":-1)", "phase -1");
  refuse(R"("multiple":2)", R"("multiple":0)", "multiple 0");
  refuse(R"("shards":4)", R"("shards":3)", "shards 3");
  refuse(R"("replicas":8)", R"("replicas":-1)", "replicas -1");
}

}  // namespace
}  // namespace weft::launch
