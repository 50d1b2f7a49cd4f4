// Shared-memory messages between real processes: lost and stopped processes, and the cost of
// waiting.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <csignal>
#include <numeric>

#include "weft/base/testing/in_time.h"
#include "weft/net/shm/testing/process_ranks.h"

namespace weft::net {
namespace shm_process_test {

using namespace std::chrono_literals;
using internal::ShmProcesses;
using Bytes = std::vector<std::byte>;

constexpr int kLostRankOne = 10;
constexpr int kTimedOut = 11;
constexpr int kSlow = 12;

Deadline soon() { return Deadline::in(20s); }

// A barrier by passing a token: all have arrived once the last one has.
void meet(Endpoint& endpoint) {
  std::byte byte{};
  for (int peer = 0; peer < endpoint.world(); ++peer) {
    if (peer == endpoint.rank()) continue;
    const Send send{peer, {&byte, 1}};
    std::byte theirs{};
    const Recv recv{peer, {&theirs, 1}};
    endpoint.exchange(99, {&send, 1}, {&recv, 1}, soon());
  }
}

TEST(ShmProcesses, ExchangeLargeMessagesOverAMemfd) {
  ShmProcesses ranks(3, [](Endpoint& endpoint, auto) {
    std::vector<int> mine(1'000'003);
    std::iota(mine.begin(), mine.end(), endpoint.rank());
    std::vector<int> theirs(mine.size());
    const Send send{(endpoint.rank() + 1) % 3, std::as_bytes(std::span(mine))};
    const Recv recv{(endpoint.rank() + 2) % 3, std::as_writable_bytes(std::span(theirs))};
    endpoint.exchange(1, {&send, 1}, {&recv, 1}, soon());
    std::iota(mine.begin(), mine.end(), recv.peer);
    return mine == theirs ? 0 : 1;
  });
  EXPECT_EQ(ranks.wait(), (std::vector<int>{0, 0, 0}));
}

// After a meeting. A rank may still be in it when rank 1 ends.
int wait_for_rank_one(Endpoint& endpoint, std::chrono::milliseconds timeout) {
  try {
    meet(endpoint);
    std::byte byte{};
    endpoint.recv(1, 5, {&byte, 1}, Deadline::in(timeout));
  } catch (const Error& error) {
    if (error.code() == Errc::kPeerLost && error.context().peer == 1) return kLostRankOne;
    if (error.code() == Errc::kTimeout && error.context().peer == 1) return kTimedOut;
    if (error.code() == Errc::kAborted) return kTimedOut;  // another rank's deadline passed first
    std::fprintf(stderr, "rank %d: %s\n", endpoint.rank(), error.what());
  }
  return 1;
}

// Rank 1 sends itself `signal` once all ranks have met. Returns the exit codes.
std::vector<int> with_rank_one_ending(int signal, std::chrono::milliseconds timeout) {
  ShmProcesses ranks(3, [&](Endpoint& endpoint, auto) {
    if (endpoint.rank() != 1) return wait_for_rank_one(endpoint, timeout);
    meet(endpoint);
    raise(signal);
    return 1;
  });
  if (signal == SIGSTOP) {  // a stopped rank ends only after the others
    for (const int rank : {0, 2}) {
      siginfo_t ended{};
      waitid(P_PID, static_cast<id_t>(ranks.pid(rank)), &ended, WEXITED | WNOWAIT);
    }
    kill(ranks.pid(1), SIGKILL);
  }
  return ranks.wait();
}

TEST(ShmProcessesTiming, LoseAKilledPeerWithinTwoSeconds) {
  expect_within(2s, [](SlowestRank& slowest) {
    const auto start = Deadline::Clock::now();
    EXPECT_EQ(with_rank_one_ending(SIGKILL, 20s),
              (std::vector<int>{kLostRankOne, 128 + SIGKILL, kLostRankOne}));
    slowest.report_since(start);
  });
}

TEST(ShmProcessesTiming, KeepTheDeadlineWhenAPeerIsStopped) {
  expect_within(2s, [](SlowestRank& slowest) {
    const auto start = Deadline::Clock::now();
    EXPECT_EQ(with_rank_one_ending(SIGSTOP, 200ms),
              (std::vector<int>{kTimedOut, 128 + SIGKILL, kTimedOut}));
    slowest.report_since(start);
  });
}

TEST(ShmProcesses, LoseAPeerKilledInTheMiddleOfALargeMessage) {
  ShmProcesses ranks(2, [](Endpoint& endpoint, auto) {
    Bytes bytes(50'000'000);
    const auto other = 1 - endpoint.rank();
    meet(endpoint);
    if (endpoint.rank() == 1) {
      endpoint.recv(0, 1, std::span(bytes).first(1'000'000), soon());
      raise(SIGKILL);
    }
    try {
      endpoint.send(other, 1, std::span(bytes).first(1'000'000), soon());
      endpoint.send(other, 1, bytes, soon());
    } catch (const Error& error) {
      return error.code() == Errc::kPeerLost && error.context().peer == 1 ? kLostRankOne : 1;
    }
    return 0;
  });
  EXPECT_EQ(ranks.wait(), (std::vector<int>{kLostRankOne, 128 + SIGKILL}));
}

// Rank 1 sends numbers until a timer kills it at an arbitrary instruction.
int send_until_killed(Endpoint& endpoint) {
  meet(endpoint);
  const itimerval soon_over{{}, {0, 3000}};
  setitimer(ITIMER_REAL, &soon_over, nullptr);
  for (std::uint64_t number = 0;; ++number) {
    std::vector<std::uint64_t> bytes(number % 7 == 6 ? 600 : 1 + number % 5, number);
    endpoint.send(0, 1, std::as_bytes(std::span(bytes)), soon());
  }
}

int receive_until_lost(Endpoint& endpoint) {
  try {
    meet(endpoint);
    for (std::uint64_t number = 0;; ++number) {
      std::vector<std::uint64_t> bytes(number % 7 == 6 ? 600 : 1 + number % 5);
      endpoint.recv(1, 1, std::as_writable_bytes(std::span(bytes)), soon());
      if (bytes != std::vector<std::uint64_t>(bytes.size(), number)) return 1;
    }
  } catch (const Error& error) {
    return error.code() == Errc::kPeerLost && error.context().peer == 1 ? kLostRankOne : 2;
  }
}

TEST(ShmProcesses, LoseASenderKilledAtAnyInstructionAndGetOnlyWholeMessages) {
  for (int round = 0; round < 5; ++round) {
    ShmProcesses ranks(2, [](Endpoint& endpoint, auto) {
      return endpoint.rank() == 1 ? send_until_killed(endpoint) : receive_until_lost(endpoint);
    });
    EXPECT_EQ(ranks.wait(), (std::vector<int>{kLostRankOne, 128 + SIGALRM}));
  }
}

TEST(ShmProcessesTiming, KeepTheDeadlineWhenTheReceiverOfManySmallMessagesIsStopped) {
  expect_within(2s, [](SlowestRank& slowest) {
    const auto start = Deadline::Clock::now();
    ShmProcesses ranks(2, [](Endpoint& endpoint, auto) {
      meet(endpoint);
      if (endpoint.rank() == 1) raise(SIGSTOP);
      try {
        for (;;) endpoint.send(1, 1, {}, Deadline::in(100ms));
      } catch (const Error& error) {
        return error.code() == Errc::kTimeout && error.context().peer == 1 ? kTimedOut : 1;
      }
    });
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(ranks.pid(0)), &ended, WEXITED | WNOWAIT);
    kill(ranks.pid(1), SIGKILL);
    EXPECT_EQ(ranks.wait(), (std::vector<int>{kTimedOut, 128 + SIGKILL}));
    slowest.report_since(start);
  });
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ShmProcessesSlow, SleepWhileTheyWaitWithMoreRanksThanProcessors) {
  ShmProcesses ranks(8, [](Endpoint& endpoint, auto) {
    meet(endpoint);
    const double before = cpu_seconds();
    try {
      endpoint.await_any(3, Deadline::in(300ms));
    } catch (const Error& error) {
      if (error.code() != Errc::kTimeout) throw;
    }
    const double used = cpu_seconds() - before;
    meet(endpoint);  // the last one that waits would be alone
    return used < 0.2 * 0.3 ? 0 : kSlow;
  });
  EXPECT_EQ(ranks.wait(), std::vector<int>(8, 0));
}

}  // namespace shm_process_test
}  // namespace weft::net
