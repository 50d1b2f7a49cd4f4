#include "weft/net/memory/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/testing/refusal.h"
#include "weft/net/memory/heap.h"
#include "weft/net/memory/testing/ranks.h"
#include "weft/observe/position/thread_state.h"

namespace weft::net {
namespace host_test {

using namespace std::chrono_literals;

// These are before tests that make a heap in this process, since forked ranks need their own.

// Exit code of a rank that leaves its group before or after the other: 0 if the memory that rank 0
// has shared is there until both have left.
int leave_in_turn(int rank, int first, const Exchange& meet, const Exchange& exchange) {
  constexpr std::uint64_t kBytes = 1 << 20;
  auto host = Host::connect({.rank = rank, .world = 2, .exchange = exchange, .timeout = 10s});
  host->share(kBytes, 10s);
  const auto held = [] {
    release_left_groups();
    return process_heap()->stats().live_bytes;
  };
  if (rank == first) host.reset();
  meet("");
  const bool early = rank == 0 && held() < kBytes;
  meet("");
  if (rank != first) host.reset();
  meet("");
  if (early) return 1;
  return rank == 0 && held() >= kBytes ? 2 : 0;
}

TEST(Host, MemoryOfAGroupIsFreedWhenTheLastRankHasLeft) {
  for (const int first : {0, 1}) {
    internal::ForkExchange exchange(2), meeting(2);
    std::vector<pid_t> children;
    for (int rank = 0; rank < 2; ++rank) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      alarm(30);  // meetings have no deadline
      _exit(leave_in_turn(rank, first, meeting.of(rank), exchange.of(rank)));
    }
    for (const pid_t child : children) {
      int status = -1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0) << "rank " << first << " left first";
    }
  }
}

TEST(HostTouch, ErrorsAreThrownWhenNoPeerIsInOne) {
  auto hosts = make_thread_hosts(2);
  std::optional<Host::Touch> touch(std::in_place, *hosts[1], "test");
  hosts[0]->fail(Error(Errc::kAborted, "ended"));
  std::atomic<bool> thrown = false;
  std::thread rank_0([&] {
    expect_refused([&] { hosts[0]->check("test"); }, Errc::kAborted, "ended");
    thrown = true;
  });
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(thrown);
  touch.reset();
  rank_0.join();
  expect_refused([&] { Host::Touch(*hosts[1], "test"); }, Errc::kAborted, "ended");
}

TEST(HostTouch, OfAStoppedRankHoldsNobodyUp) {
  const auto statuses = internal::run_processes(2, [](Host& host) {
    auto& pid = *reinterpret_cast<std::atomic<pid_t>*>(host.share(64, 60s));
    if (host.rank() == 1) {
      const Host::Touch touch(host, "test");
      pid = getpid();
      raise(SIGSTOP);
    }
    while (pid == 0 || !observe::read_thread_state(pid, pid).is_held())
      std::this_thread::sleep_for(1ms);
    const auto began = std::chrono::steady_clock::now();
    host.fail(Error(Errc::kAborted, "ended"));
    expect_refused([&] { host.check("test"); }, Errc::kAborted, "ended");
    kill(pid, SIGKILL);
    return std::chrono::steady_clock::now() - began < 5s ? 0 : 1;
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(HostTouch, OfADeadRankHoldsNobodyUp) {
  const auto statuses = internal::run_processes(2, [](Host& host) {
    host.share(64, 60s);
    if (host.rank() == 1) {
      const Host::Touch touch(host, "test");
      raise(SIGKILL);
    }
    const auto began = std::chrono::steady_clock::now();
    expect_refused([&] { host.meet("test", 60s); }, Errc::kPeerLost, "has died");
    return std::chrono::steady_clock::now() - began < 10s ? 0 : 1;
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(HostShare, ThrowsOnAllRanksIfTheHeapOfRank0IsFull) {
  const auto statuses = internal::run_processes(2, [](Host& host) {
    const auto began = std::chrono::steady_clock::now();
    try {
      host.share(std::size_t{1} << 50, 60s);
      return 1;
    } catch (const Error& error) {
      if (error.code() != Errc::kUnavailable ||
          error.message().find("of rank 0 has no room") == std::string::npos)
        return 2;
    }
    *host.share(64, 60s) = std::byte{1};  // the group goes on
    return std::chrono::steady_clock::now() - began < 10s ? 0 : 3;
  });
  EXPECT_THAT(statuses, testing::Each(0));
}

TEST(HostConnect, OfAProcessThatWasForkedFromOneWithAHeapSaysSo) {
  const auto child = [] {
    process_heap();
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      try {
        Host::connect({.rank = 0,
                       .world = 1,
                       .exchange = [](const std::string& mine) { return std::vector{mine}; },
                       .timeout = 10s});
      } catch (const Error& error) {
        _exit(error.message().find("forked from one that had used weft") == std::string::npos);
      }
      _exit(2);
    }
    int status = -1;
    waitpid(grandchild, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
  };
  const pid_t pid = fork();
  if (pid == 0) child();
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

// It has done its part after this rank looked for it, and has left before this rank looks whether
// it is lost.
TEST(HostWait, APeerThatHasDoneItsPartMayLeaveAtAnyTime) {
  for (const bool does_its_part : {true, false}) {
    auto hosts = make_thread_hosts(2);
    bool ready = false;
    int looks = 0;
    const auto suspect = [&] {
      if (++looks < 2 || !hosts[1]) return 1;
      hosts[1].reset();
      ready = does_its_part;
      return 1;
    };
    const auto wait = [&] { hosts[0]->wait([&] { return ready; }, suspect, "test", 10s); };
    if (does_its_part) {
      EXPECT_NO_THROW(wait());
    } else {
      expect_refused(wait, Errc::kPeerLost, "has left the group");
    }
    EXPECT_GE(looks, 2);
  }
}

// A signal (of a profiler, or of a launcher that ends the job) interrupts the calls of sockets that
// have a timeout, whatever its handler's flags say.
TEST(HostConnect, FreesTheMemoryOfAGroupThatRank0CouldNotJoin) {
  internal::ForkExchange exchange(2);
  const auto run = [&](int rank) {
    const Exchange whole = exchange.of(rank);
    const auto broken = [whole, calls = 0](const std::string& mine) mutable {
      auto all = whole(mine);
      if (++calls == 2) throw std::runtime_error("the store is gone");
      return all;
    };
    const auto held = [] { return process_heap()->stats().live_bytes; };
    const auto before = held();
    try {
      const auto host = Host::connect(
          {.rank = rank, .world = 2, .exchange = rank == 0 ? Exchange(broken) : whole});
      host->meet("test", 10s);
      return 1;
    } catch (const Error& error) {
      return rank == 1 && error.code() == Errc::kPeerLost ? 0 : 2;
    } catch (const std::runtime_error&) {  // of rank 0
    }
    for (const auto limit = Deadline::in(10s); held() != before && !limit.passed();) {
      release_left_groups();
      std::this_thread::yield();
    }
    return held() == before ? 0 : 3;
  };
  EXPECT_EQ(internal::fork_ranks(2, run), std::vector<int>(2, 0));
}

TEST(HostConnect, SignalsDoNotDisturbIt) {
  constexpr int kWorld = 3, kTimes = 60;
  std::deque<internal::ForkExchange> exchanges;
  for (int i = 0; i < kTimes; ++i) exchanges.emplace_back(kWorld);
  const auto codes = internal::fork_ranks(kWorld, [&](int rank) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, nullptr);
    const itimerval often{{0, 100}, {0, 100}};
    setitimer(ITIMER_REAL, &often, nullptr);
    try {
      for (auto& exchange : exchanges) {
        Host::connect(
            {.rank = rank, .world = kWorld, .exchange = exchange.of(rank), .timeout = 20s});
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 1;
    }
    return 0;
  });
  EXPECT_THAT(codes, testing::Each(0));
}

// Exit codes of three ranks that connect, of which one can open only `left` files more, unless it
// may raise its limit: 3 for kUnavailable.
std::vector<int> connect_with_few_descriptors(int failing, rlim_t left, bool may_raise) {
  constexpr int kWorld = 3;
  internal::ForkExchange exchange(kWorld);
  auto codes = internal::fork_ranks(kWorld, [&](int rank) {
    alarm(30);  // the exchange has no deadline
    process_heap();
    // The undefined behavior sanitizer opens a pipe when it meets a type for the first time.
    try {
      throw Error(Errc::kUnavailable, "");
    } catch (const Error& error) {
      if (error.code() != Errc::kUnavailable) return 5;
    }
    if (rank == failing) {
      const int next = dup(0);
      close(next);
      rlimit few{};
      getrlimit(RLIMIT_NOFILE, &few);
      few.rlim_cur = static_cast<rlim_t>(next) + left;
      if (!may_raise) few.rlim_max = few.rlim_cur;
      setrlimit(RLIMIT_NOFILE, &few);
    }
    try {
      Host::connect({.rank = rank, .world = kWorld, .exchange = exchange.of(rank), .timeout = 60s});
    } catch (const Error& error) {
      return error.code() == Errc::kUnavailable ? 3 : 4;
    }
    return 0;
  });
  for (int& code : codes) code = WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
  return codes;
}

// The other ranks do not wait for their timeout.
TEST(HostConnect, ARankThatCannotConnectFailsOnAllRanksAtOnce) {
  for (const int failing : {0, 1, 2}) {
    for (const rlim_t left : {0, 1}) {  // none for the listener, or none for the connections
      if (failing == 0 && left == 1) continue;  // it accepts, and needs one at a time
      const auto began = std::chrono::steady_clock::now();
      EXPECT_THAT(connect_with_few_descriptors(failing, left, false), testing::Each(3))
          << failing << " " << left;
      EXPECT_LT(std::chrono::steady_clock::now() - began, 10s) << failing << " " << left;
    }
  }
}

TEST(HostConnect, RaisesTheSoftLimitOfOpenFilesIfItsConnectionsDoNotFit) {
  for (const int failing : {0, 1, 2})
    EXPECT_THAT(connect_with_few_descriptors(failing, 0, true), testing::Each(0)) << failing;
}

TEST(HostConnect, RejectsALocationOutsideTheHeapForTheGroupsMemory) {
  ASSERT_NE(process_heap(), nullptr) << process_heap_error();
  for (const std::string said : {"", "ok", "ok ", "ok x", "ok 64x", "ok -64", "ok 7",
                                 "ok 18446744073709551552", "ok 99999999999999999999"}) {
    bool named = false;
    const auto exchange = [&](const std::string& mine) {
      return std::vector{std::exchange(named, true) ? said : mine};
    };
    try {
      Host::connect({.rank = 0, .world = 1, .exchange = exchange, .timeout = 1s});
      ADD_FAILURE() << "'" << said << "' was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kCorrupt) << error.what();
      EXPECT_THAT(error.message(), testing::HasSubstr("'" + said + "', which is not in its heap"));
    }
  }
}

}  // namespace host_test
}  // namespace weft::net
