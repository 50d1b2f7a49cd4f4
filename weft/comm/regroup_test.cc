// Groups that survive the loss of ranks: the test stops, kills and adds processes, and hosts the
// store itself.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/base/deadline.h"
#include "weft/base/testing/in_time.h"
#include "weft/comm/allocator.h"
#include "weft/comm/init.h"
#include "weft/comm/internal/rendezvous.h"
#include "weft/comm/testing/processes.h"
#include "weft/net/memory/host.h"

namespace weft::comm {
namespace {

using namespace std::chrono_literals;
void say(c10d::Store& store, const std::string& key) {
  store.set(key, std::vector<std::uint8_t>{1});
}
void await(c10d::Store& store, const std::string& key) { store.wait({key}, 30s); }

// Kills the victim when all of `ranks` have reached this call. Messages that it has sent may be
// lost.
void die_when_all_are_here(const Me& me, int victim, const std::vector<int>& ranks) {
  const auto key = [&](int id) {
    return "victim" + std::to_string(victim) + "/" + std::to_string(id);
  };
  say(*me.store, key(me.id));
  if (me.id != victim) return;
  for (const int id : ranks) await(*me.store, key(id));
  raise(SIGKILL);
}

BackendOptions quick(const std::string& transport) {
  return {.transport = parse_transport(transport), .timeout = 1500ms};
}
const RegroupOptions kQuick{.wait = 1500ms};

// Runs a small and a large all-reduce.
void expect_works(const Group& group) {
  for (const std::int64_t count : {10, 300'000}) {
    at::Tensor t = at::full({count}, group.rank() + 1.0F);
    group.all_reduce(t);
    const float sum = static_cast<float>(group.size() * (group.size() + 1)) / 2;
    if (!at::equal(t, at::full({count}, sum))) throw std::runtime_error("all_reduce is wrong");
  }
}

void expect(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

// Returns the code and the text of the error that `body` throws.
std::pair<Errc, std::string> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  throw std::runtime_error("no error was thrown");
}

// Address of the peers' `tensor`, as a rank of their host sees it during a collective.
std::vector<net::Host::Token> tokens_of(const Group& group, const at::Tensor& tensor) {
  at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(
      all,
      at::full({1}, static_cast<std::int64_t>(group.host()->token(tensor.data_ptr())), at::kLong));
  std::vector<net::Host::Token> tokens;
  for (int rank = 0; rank < group.size(); ++rank)
    tokens.push_back(static_cast<net::Host::Token>(all[rank].item<std::int64_t>()));
  return tokens;
}

// Rank 1 is stopped, the others continue without it, and it wakes up.
int stopped_and_continued(const Me& me, const std::string& transport) {
  const Group group = form_group(me.store, me.id, 3, quick(transport));
  expect_works(group);
  at::Tensor kept = at::full({300'000}, 5.0F);
  std::vector<net::Host::Token> tokens;
  if (group.host() != nullptr) tokens = tokens_of(group, kept);
  group.barrier();
  if (me.id == 1) {
    raise(SIGSTOP);
    // Simulates the operation during which it was stopped: a write into the peers' tensors.
    for (const int peer : {0, 2}) {
      if (!tokens.empty())
        std::memset(group.host()->at(peer, tokens[static_cast<std::size_t>(peer)]), 77,
                    300'000 * sizeof(float));
    }
    error_of([&] { expect_works(group); });
    const auto [code, what] = error_of([&] { group.regroup(kQuick); });
    expect(code == Errc::kAborted && what.find("continued without this rank") != std::string::npos,
           what.c_str());
    say(*me.store, "late");
    return 0;
  }
  const auto [code, what] = error_of([&] { expect_works(group); });
  expect(code == Errc::kTimeout || code == Errc::kPeerLost || code == Errc::kAborted, what.c_str());
  const Group next = group.regroup(kQuick);
  expect(next.size() == 2 && next.rank() == me.id / 2 && next.epoch() == 1, "the new group");
  expect(next.former_ranks() == std::vector<int>{0, 2}, "the former ranks");
  expect_works(next);
  say(*me.store, "regrouped/" + std::to_string(next.rank()));
  await(*me.store, "late");
  expect_works(next);
  expect(at::equal(kept, at::full({300'000}, 5.0F)),
         "the late rank wrote into a tensor of the new group");
  return 0;
}

void stop_and_continue(const std::string& transport, const std::vector<std::string>& hosts) {
  Processes processes(
      3, [&](const Me& me) { return stopped_and_continued(me, transport); }, hosts);
  processes.store().wait({"regrouped/0", "regrouped/1"}, 30s);
  processes.continues(1);
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, 0}));
}

TEST(Regroup, LeavesOutAStoppedRankWhoseLateWritesReachNobody) { stop_and_continue("auto", {}); }
TEST(Regroup, LeavesOutAStoppedRankOverTcp) { stop_and_continue("tcp", {}); }
TEST(Regroup, LeavesOutAStoppedRankOnTwoHosts) { stop_and_continue("auto", {"a", "a", "b"}); }

TEST(Regroup, SubgroupsOfTheNextGroupHaveTheTimeoutOfTheGroup) {
  constexpr auto kWait = 500ms;
  Processes processes(2, [&](const Me& me) {
    const Group group = form_group(me.store, me.id, 2, {.timeout = 20s});
    expect_works(group);
    const Group next = group.regroup({.wait = kWait});
    if (me.id == 0) say(*me.store, "rank 0 waits");
    if (me.id == 1) {
      await(*me.store, "rank 0 waits");
      std::this_thread::sleep_for(kWait + 200ms);
    }
    expect_works(next.subgroup({0, 1}, "both"));
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

TEST(Regroup, RanksMeetWithoutATimeout) {
  constexpr auto kNever = std::chrono::milliseconds::max();
  Processes processes(2, [&](const Me& me) {
    const Group group = form_group(me.store, me.id, 2, {.timeout = kNever});
    expect_works(group);
    expect_works(group.regroup({.wait = kNever, .timeout = kNever}));
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0}));
}

int replaced(const Me& me, const std::string& transport) {
  Identity identity;
  identity.rank = me.id;
  identity.world = 3;
  identity.local_world = 3;
  identity.master_port = me.port;
  identity.store_is_hosted_elsewhere = true;
  InitOptions options;
  options.transport = parse_transport(transport);
  options.timeout = 20s;
  options.newcomer = me.id == 3;
  Group group = init(identity, options);
  if (me.id < 3) {
    expect_works(group);
    die_when_all_are_here(me, 1, {0, 2});
    const auto [code, what] = error_of([&] { expect_works(group); });
    expect(code == Errc::kPeerLost, what.c_str());
    group = group.regroup({.size = 3});
  }
  expect(group.size() == 3 && group.former_ranks() == std::vector<int>{0, 2, -1}, "the new group");
  expect(group.rank() == std::vector<int>{0, -1, 1, 2}[static_cast<std::size_t>(me.id)],
         "the new rank");
  at::Tensor state = me.id == 3 ? at::zeros({1000}) : at::full({1000}, 42.0F);
  group.broadcast(state, 0);
  expect(at::equal(state, at::full({1000}, 42.0F)), "the state handed on");
  expect_works(group);
  return 0;
}

TEST(Regroup, ANewcomerReplacesAKilledRankAndGetsTheState) {
  for (const char* transport : {"auto", "tcp"}) {
    Processes processes(4, [&](const Me& me) { return replaced(me, transport); });
    EXPECT_EQ(processes.codes(), (std::vector<int>{0, -SIGKILL, 0, 0})) << transport;
  }
}

// A wrong process asks first to join, then a right one. The group waits for the right one.
int refuse_and_admit(const Me& me, const char* transport) {
  BackendOptions options{.transport = parse_transport(transport), .timeout = 20s};
  options.alike = {{"model", "weight Float[3, 2]; "}};
  if (me.id == 3) {
    await(*me.store, "started");
    options.alike = {{"model", "weight Float[4, 2]; "}};
    const auto [code, what] = error_of([&] { join_group(me.store, options, 20s); });
    expect(code == Errc::kBadConfig, what.c_str());
    expect(what.find("has 'weight Float[4, 2]' and that of the running job 'weight Float[3, 2]'") !=
               std::string::npos,
           what.c_str());
    options.alike = {{"model", "weight Float[3, 2]; "}};
    expect_works(join_group(me.store, options, 20s));
    return 0;
  }
  Group group = form_group(me.store, me.id, 3, options);
  if (me.id == 0) say(*me.store, "started");
  expect_works(group);
  group = group.regroup({.size = 4});
  expect(group.size() == 4 && group.epoch() == 1, "the new group");
  expect_works(group);
  return 0;
}

TEST(Regroup, RefusesANewcomerThatDiffersAndWaitsForAnother) {
  for (const char* transport : {"auto", "tcp"}) {
    Processes processes(4, [&](const Me& me) { return refuse_and_admit(me, transport); });
    EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, 0, 0})) << transport;
  }
}

TEST(Regroup, SurvivesTwoFailuresInSuccessionIncludingRankZero) {
  for (const char* transport : {"auto", "tcp"}) {
    Processes processes(4, [&](const Me& me) {
      Group group =
          form_group(me.store, me.id, 4, {.transport = parse_transport(transport), .timeout = 20s});
      for (const int victim : {3, 0}) {
        expect_works(group);
        die_when_all_are_here(me, victim, victim == 3 ? std::vector{0, 1, 2} : std::vector{1, 2});
        expect(error_of([&] { expect_works(group); }).first == Errc::kPeerLost, "the loss");
        group = group.regroup();
      }
      expect(group.size() == 2 && group.rank() == me.id - 1 && group.epoch() == 2,
             "the last group");
      expect_works(group);
      return 0;
    });
    EXPECT_EQ(processes.codes(), (std::vector<int>{-SIGKILL, 0, 0, -SIGKILL})) << transport;
  }
}

TEST(Regroup, FormsUnderTheNextEpochIfAMemberDiesDuringTheRendezvous) {
  for (const char* transport : {"auto", "tcp"}) {
    Processes processes(3, [&](const Me& me) {
      const Group group =
          form_group(me.store, me.id, 3, {.transport = parse_transport(transport), .timeout = 20s});
      if (me.id == 2) {  // announces that it joins, and does not
        internal::Rendezvous(me.store, 1).arrive({"2", 2});
        internal::Rendezvous at(me.store, 1);
        while (!at.decided()) usleep(1000);
        raise(SIGKILL);
      }
      const Group next = group.regroup({.wait = 1500ms});
      expect(next.size() == 2 && next.epoch() == 2, "the new group");
      expect_works(next);
      return 0;
    });
    EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, -SIGKILL})) << transport;
  }
}

// Rank 2 is lost, and its replacement is lost while the group forms with it. The next replacement
// tells the others so: they do not wait until their limit.
TEST(Regroup, DoesNotWaitForAMemberThatWasReplacedWhileTheGroupForms) {
  constexpr auto kLimit = 60s;
  const auto start = Deadline::Clock::now();
  Processes processes(5, [&](const Me& me) {
    const BackendOptions options{.transport = Transport::kAuto, .timeout = kLimit};
    if (me.id == 3) {  // joins, and ends before it is connected
      await(*me.store, "lost");
      internal::Rendezvous at(me.store, 1);
      at.arrive({internal::name_of_newcomer(*me.store, 2), -1, 2});
      while (!at.decided()) usleep(1000);
      say(*me.store, "lost again");
      raise(SIGKILL);
    }
    if (me.id == 4) {
      await(*me.store, "lost again");
      const Group group = join_group(me.store, options, kLimit, 2);
      expect(group.size() == 3 && group.rank() == 2 && group.epoch() == 2, "the newcomer's group");
      expect_works(group);
      return 0;
    }
    const Group group = form_group(me.store, me.id, 3, options);
    expect_works(group);
    if (me.id == 2) say(*me.store, "lost");
    die_when_all_are_here(me, 2, {0, 1});
    const Group next = group.regroup(
        {.size = 3, .keep_ranks = true, .at_least = 3, .wait = kLimit, .timeout = kLimit});
    expect(next.size() == 3 && next.rank() == me.id && next.epoch() == 2, "the new group");
    expect_works(next);
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, -SIGKILL, -SIGKILL, 0}));
  EXPECT_LT(Deadline::Clock::now() - start, kLimit / 3);
}

// Rank 3 dies while the others divide the group into {2, 3}, where rank 2 waits for it, and {0, 1}.
// Rank 1 waits for rank 0, which has left for the next group because of rank 3.
TEST(Regroup, NoRankWaitsForASubgroupOnceARankOfTheWholeGroupIsLost) {
  constexpr auto kLimit = 60s;
  for (const char* transport : {"auto", "tcp"}) {
    const auto start = Deadline::Clock::now();
    Processes processes(4, [&](const Me& me) {
      const Group group = form_group(me.store, me.id, 4,
                                     {.transport = parse_transport(transport), .timeout = kLimit});
      expect_works(group);
      die_when_all_are_here(me, 3, {0, 1, 2});
      if (me.id > 0) {
        const std::vector<int> part = me.id == 1 ? std::vector{0, 1} : std::vector{2, 3};
        const auto [code, what] = error_of([&] { group.subgroup(part, "part"); });
        expect(code == Errc::kPeerLost || code == Errc::kAborted, what.c_str());
      }
      const Group next = group.regroup({.size = 3, .wait = kLimit, .timeout = kLimit});
      expect(next.size() == 3, "the new group");
      expect_works(next);
      return 0;
    });
    EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, 0, -SIGKILL})) << transport;
    EXPECT_LT(Deadline::Clock::now() - start, kLimit / 3) << transport;
  }
}

// The same in a group that has formed again, of which a rank gives up for a reason of its own.
TEST(Regroup, NoRankWaitsForASubgroupOnceAnotherOneFormsTheNextGroup) {
  constexpr auto kLimit = 60s;
  const auto start = Deadline::Clock::now();
  Processes processes(3, [&](const Me& me) {
    const Group first =
        form_group(me.store, me.id, 3, {.transport = Transport::kTcp, .timeout = kLimit});
    const Group group = first.regroup({.wait = kLimit, .timeout = kLimit});
    if (me.id > 0) {
      const auto [code, what] = error_of([&] { group.subgroup({0, 1, 2}, "all"); });
      expect(code == Errc::kAborted, what.c_str());
    }
    expect_works(group.regroup({.wait = kLimit, .timeout = kLimit}));
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, 0}));
  EXPECT_LT(Deadline::Clock::now() - start, kLimit / 3);
}

int regroup_with_pending_work(const Me& me, const char* transport, SlowestRank& slowest) {
  Group group =
      form_group(me.store, me.id, 2, {.transport = parse_transport(transport), .timeout = 60s});
  expect_works(group);
  at::Tensor t = at::ones({300'000}), received = at::ones({10});
  std::vector<at::Tensor> tensors{received};
  std::vector<Group::Work> works;
  if (me.id == 0)
    works = {group.all_reduce_async(t), group.all_reduce_async(t),
             group.backend().recv(tensors, 1, 7)};
  const auto start = Deadline::Clock::now();
  const Group next = group.regroup();
  for (const auto& work : works)
    expect(error_of([&] { work->wait(); }).first == Errc::kAborted, "the pending work's error");
  slowest.report_since(start);
  expect(next.size() == 2 && next.rank() == me.id, "the new group");
  expect_works(next);
  expect(error_of([&] { group.barrier(); }).first == Errc::kAborted, "the old group's error");
  return 0;
}

TEST(RegroupTiming, EndsPendingWorkWithAbortedWithinFiveSeconds) {
  for (const char* transport : {"auto", "tcp"}) {
    expect_within(5s, [&](SlowestRank& slowest) {
      Processes processes(
          2, [&](const Me& me) { return regroup_with_pending_work(me, transport, slowest); });
      EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0})) << transport;
    });
  }
}

// Rank 0 leaves the group for a reason of its own, while rank 1 waits for it.
TEST(RegroupTiming, ARankThatWaitsForOneThatRegroupsIsToldWithinASecond) {
  for (const char* transport : {"auto", "tcp"}) {
    expect_within(1s, [&](SlowestRank& slowest) {
      Processes processes(2, [&](const Me& me) {
        const Group group = form_group(me.store, me.id, 2,
                                       {.transport = parse_transport(transport), .timeout = 60s});
        expect_works(group);
        if (me.id == 1) {
          const auto start = Deadline::Clock::now();
          at::Tensor never = at::empty({3});
          const auto [code, what] = error_of([&] { group.recv(never, 0); });
          slowest.report_since(start);
          expect(code == Errc::kAborted && what.find("rank 0") != std::string::npos, what.c_str());
        }
        const Group next = group.regroup(kQuick);
        expect(next.size() == 2 && next.rank() == me.id, "the new group");
        expect_works(next);
        return 0;
      });
      EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0})) << transport;
    });
  }
}

// The launcher says that a process comes in place of rank 1. It takes longer than the wait.
TEST(Regroup, WaitsForAProcessThatIsComingBeyondItsTime) {
  constexpr auto kWait = 300ms;
  Processes processes(3, [&](const Me& me) {
    const BackendOptions options{.timeout = 20s};
    if (me.id == 2) {
      while (internal::Rendezvous(me.store, 1).arrived().empty()) usleep(1000);
      const auto late = Deadline::in(kWait + 50ms);
      while (!late.passed()) usleep(1000);
      expect_works(join_group(me.store, options, 20s, 1));
      return 0;
    }
    const Group group = form_group(me.store, me.id, 2, options);
    die_when_all_are_here(me, 1, {0});
    const std::string coming = "*1 ";
    me.store->append(internal::kGoneKey, {coming.begin(), coming.end()});
    const Group next = group.regroup({.size = 2, .keep_ranks = true, .at_least = 2, .wait = kWait});
    expect(next.size() == 2, "the new group");
    expect_works(next);
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, -SIGKILL, 0}));
}

// As with several launchers that do not know each other's losses.
TEST(Regroup, NewcomersThatReplaceAllRanksFormAGroup) {
  Processes processes(4, [&](const Me& me) {
    const BackendOptions options{.timeout = 20s};
    if (me.id >= 2) {
      await(*me.store, "lost");
      const Group group = join_group(me.store, options, 20s, me.id - 2, 2);
      expect(group.size() == 2 && group.rank() == me.id - 2, "the group of newcomers");
      expect(group.former_ranks() == std::vector<int>{-1, -1}, "no survivor");
      expect_works(group);
      return 0;
    }
    form_group(me.store, me.id, 2, options);
    die_when_all_are_here(me, 1, {0});
    say(*me.store, "lost");
    raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{-SIGKILL, -SIGKILL, 0, 0}));
}

TEST(Regroup, ReportsWhatIsMissing) {
  EXPECT_EQ(error_of([] { Group(make_backend(nullptr, 0, 1), "alone").regroup(); }).first,
            Errc::kInvalidArgument);
  Processes processes(2, [&](const Me& me) {
    const Group group = form_group(me.store, me.id, 2, quick("auto"));
    expect_works(group);  // the group of one has left no thread that a forked process would await
    die_when_all_are_here(me, 1, {0});
    const auto [code, what] = error_of([&] { group.regroup({.at_least = 2, .wait = 200ms}); });
    expect(code == Errc::kTimeout && what.find("only 1 of at least 2 ranks") != std::string::npos,
           what.c_str());
    const auto none = error_of([&] { join_group(me.store, quick("auto"), 50ms); });
    expect(none.first == Errc::kTimeout, none.second.c_str());
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, -SIGKILL}));
}

}  // namespace
}  // namespace weft::comm
