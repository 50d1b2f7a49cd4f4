// What becomes of parameter servers that end, and what the launcher says about it.
#include "weft/launch/internal/servers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <thread>

#include "weft/base/error.h"
#include "weft/launch/supervision.h"
#include "weft/launch/testing/rank_ends.h"

namespace weft::launch::internal {
namespace servers_test {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ServerPolicy, StartsAServerAgainThatHasServedWhereOthersHaveItsShards) {
  EXPECT_EQ(act_on({.status = {true, SIGKILL}, .ever_served = true}), ServerAct::kStartAgain);
  EXPECT_EQ(act_on({.status = {false, 3}, .ever_served = true}), ServerAct::kStartAgain);
}

TEST(ServerPolicy, EndsTheJobWhenTheOnlyCopyIsLostOrAServerCannotServe) {
  EXPECT_EQ(act_on({.status = {true, SIGKILL}, .ever_served = true, .has_copies = false}),
            ServerAct::kEndJob);
  EXPECT_EQ(act_on({.status = {false, 2}, .ever_served = false}), ServerAct::kEndJob);
}

TEST(ServerPolicy, GivesUpOneServerThatEndsAgainAndAgain) {
  ServerEnd end{.status = {true, SIGSEGV}, .ever_served = true, .in_a_row = kMaxServerEnds - 1};
  EXPECT_EQ(act_on(end), ServerAct::kStartAgain);
  end.in_a_row = kMaxServerEnds;
  EXPECT_EQ(act_on(end), ServerAct::kGiveUp);
  end.other_given_up = true;
  EXPECT_EQ(act_on(end), ServerAct::kEndJob);
}

TEST(DecideWithServers, StopsTheRanksWhenValuesAreLostAndStartsAllAgainIfItMay) {
  Situation seen = situation({std::nullopt, std::nullopt});
  EXPECT_EQ(decide(seen, Policy{}, kStart).act, Act::kWait);
  seen.servers_lost = "server 0 is lost";
  EXPECT_EQ(decide(seen, Policy{.max_replacements = 9}, kStart).act, Act::kTerminate);
  const RankEnd end = told(killed(SIGTERM, 1s));
  seen.ranks = {end, end};
  EXPECT_EQ(decide(seen, Policy{}, kStart + 2s).act, Act::kFinish);
  EXPECT_EQ(decide(seen, Policy{.max_restarts = 1}, kStart + 2s).act, Act::kRestart);
  EXPECT_EQ(next_attempt(seen, Act::kRestart).servers_lost, std::nullopt);
}

TEST(DecideWithServers, KeepsThoseOfANodeUntilTheRanksOfOtherNodesHaveEnded) {
  Situation seen = situation({exited(0, 9s)});
  seen.followed = Situation::Followed{.over = kStart + 10s, .done = true, .serves = true};
  EXPECT_EQ(decide(seen, Policy{}, kStart + 999s).act, Act::kWait);
  seen.followed->all_left = kStart + 99s;
  EXPECT_EQ(decide(seen, Policy{}, kStart + 99s).until, kStart + 99s + kFarewell);
  EXPECT_EQ(decide(seen, Policy{}, kStart + 99s + kFarewell).act, Act::kFinish);
  seen.followed->all_left.reset();
  seen.stop_sent = kStart + 20s;
  EXPECT_EQ(decide(seen, Policy{}, kStart + 20s).act, Act::kFinish) << "somebody asked it to end";
}

// Servers that run a function in a process.
struct Pool {
  std::function<int(int server, rank_link::Link&)> work;
  std::vector<std::string> notes;
  std::vector<int> started;
  Servers servers;

  Pool(bool has_copies, std::function<int(int, rank_link::Link&)> does)
      : work(std::move(does)),
        servers({.has_copies = has_copies,
                 .start = [this](int server) { return start(server); },
                 .note = [this](const std::string& text) { notes.push_back(text); },
                 .on_end = [](pid_t) {}}) {}

  ServerProcess start(int server) {
    started.push_back(server);
    auto [mine, theirs] = rank_link::Link::make();
    const auto end = std::make_shared<rank_link::Link>(std::move(theirs));
    ProcessOptions options;
    options.inherit = {end->fd()};
    options.call = [this, server, end] { return work(server, *end); };
    Process process(options);
    return {std::move(process), std::move(mine), LineRelay(), LineRelay()};
  }

  bool look_until(const std::function<bool()>& condition) {
    for (const Deadline deadline = Deadline::in(10s); !deadline.passed();) {
      servers.look(Deadline::Clock::now());
      if (condition()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }
  void kill(int server) const {
    // "server 0: process 4711, …"
    const std::string text = servers.describe(), name = "server " + std::to_string(server);
    const auto at = text.find(name + ": process ");
    ASSERT_NE(at, std::string::npos) << text;
    ::kill(std::stoi(text.substr(at + name.size() + 10)), SIGKILL);
  }
};

int serve(int, rank_link::Link& link) {
  link.tell("serving");
  link.tell("replicated");
  ::pause();
  return 0;
}

TEST(Servers, AreStartedAgainAndSayWhenTheirShardsHaveTwoCopiesAgain) {
  Pool pool(true, serve);
  pool.servers.run({0, 1}, Deadline::Clock::now());
  EXPECT_TRUE(pool.look_until([&] { return pool.servers.replicated() == std::set{0, 1}; }));
  EXPECT_THAT(pool.notes, IsEmpty());
  EXPECT_THAT(pool.servers.describe(), HasSubstr("serves, its shards have two copies; server 1"));
  pool.kill(1);
  EXPECT_TRUE(pool.look_until([&] { return pool.notes.size() == 2; }));
  EXPECT_THAT(pool.started, ElementsAre(0, 1, 1));
  EXPECT_THAT(pool.notes,
              ElementsAre("server 1 is lost: SIGKILL (signal 9); its backup serves, and a new "
                          "process becomes the backup",
                          "each shard of server 1 has two copies again"));
  EXPECT_EQ(pool.servers.failure(), std::nullopt);
}

TEST(Servers, OfWhichTheOnlyCopyIsLostEndTheJob) {
  Pool pool(false, serve);
  pool.servers.run({0}, Deadline::Clock::now());
  EXPECT_TRUE(pool.look_until([&] { return pool.servers.replicated() == std::set{0}; }));
  pool.kill(0);
  EXPECT_TRUE(pool.look_until([&] { return pool.servers.failure().has_value(); }));
  EXPECT_EQ(pool.servers.failure(),
            "server 0 is lost: SIGKILL (signal 9); it had the only copy of its shard");
  EXPECT_THAT(pool.started, ElementsAre(0)) << "its values would be gone";
}

TEST(Servers, ThatFindBothCopiesLostEndTheJob) {
  Pool pool(true, [](int, rank_link::Link& link) {
    link.tell("serving");
    link.tell("lost", "1");
    ::pause();
    return 0;
  });
  pool.servers.run({1}, Deadline::Clock::now());
  EXPECT_TRUE(pool.look_until([&] { return pool.servers.failure().has_value(); }));
  EXPECT_EQ(pool.servers.failure(), "both copies of shard 1 of the parameter server are lost");
}

TEST(Servers, ThatCannotServeEndTheJobAtOnce) {
  Pool pool(true, [](int, rank_link::Link&) { return 2; });
  pool.servers.run({0}, Deadline::Clock::now());
  EXPECT_TRUE(pool.look_until([&] { return pool.servers.failure().has_value(); }));
  EXPECT_EQ(pool.servers.failure(), "server 0 cannot serve: exit code 2");
  EXPECT_THAT(pool.started, ElementsAre(0));
}

TEST(Servers, ThatEndAgainAndAgainAreNotStartedForEver) {
  Pool pool(true, [](int server, rank_link::Link& link) {
    if (server == 0) return serve(server, link);
    link.tell("serving");
    return 3;
  });
  pool.servers.run({0, 1}, Deadline::Clock::now());
  EXPECT_TRUE(pool.look_until([&] { return pool.notes.size() == kMaxServerEnds; }));
  EXPECT_EQ(pool.notes.back(),
            "server 1 is lost: exit code 3; it has ended 5 times in a row and is not started "
            "again; the job goes on with the remaining copies");
  EXPECT_FALSE(pool.servers.next(Deadline::Clock::now()));
  EXPECT_EQ(pool.servers.failure(), std::nullopt);
}

TEST(Servers, ThatAreWantedNoMoreAreKilledAndOthersEndInTime) {
  Pool pool(true, [](int server, rank_link::Link& link) {
    if (server == 2) ::signal(SIGTERM, SIG_IGN);
    return serve(server, link);
  });
  pool.servers.run({0, 1, 2}, Deadline::Clock::now());
  EXPECT_TRUE(pool.look_until([&] { return pool.servers.replicated().size() == 3; }));
  pool.servers.run({1, 2}, Deadline::Clock::now());
  EXPECT_EQ(pool.servers.replicated(), (std::set{1, 2}));
  EXPECT_THAT(pool.notes, IsEmpty());
  pool.servers.end();
  EXPECT_EQ(pool.servers.describe(), "");
  EXPECT_THAT(pool.notes, ElementsAre("server 2 did not end within 3 s: killing it"));
}

}  // namespace servers_test
}  // namespace weft::launch::internal
