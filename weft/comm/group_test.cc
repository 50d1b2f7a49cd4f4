#include "weft/comm/group.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "weft/base/deadline.h"
#include "weft/base/testing/in_time.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/exercise.h"
#include "weft/comm/testing/failures.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/net/memory/host.h"
#include "weft/observe/trace.h"

namespace weft::comm {
namespace {

using namespace std::chrono_literals;
using internal::exercise;

TEST(Group, DoesEveryCollectiveAsThreads) {
  for (int world : {1, 2, 3}) replicate(world, exercise, 20s);
}

TEST(Group, DoesEveryCollectiveAsProcessesInSharedMemoryAndOverTcp) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = fork_ranks(3, transport, [](const Group& group) {
      exercise(group);
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(3, 0)) << transport;
  }
}

TEST(Group, PeersCanReadTensorsMadeAfterTheAllocatorWasInstalled) {
  const auto codes = fork_ranks(2, "shm", [](const Group& group) {
    return group.host()->token(at::empty({100}).data_ptr()) != net::Host::kNoToken ? 0 : 1;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(GroupTiming, AMismatchIsAnErrorWithBothSignaturesOnEveryRankWithinASecond) {
  for (const char* transport : {"shm", "tcp"}) {
    expect_within(1s, [&](SlowestRank& slowest) {
      const auto codes = fork_ranks(
          3, transport, [&](const Group& group) { return see_mismatch(group, 1, slowest); });
      EXPECT_EQ(codes, std::vector<int>(3, 0)) << transport;
    });
  }
}

// Rank 0 gives the sizes of its parts, and the others do not.
int see_sizes_on_one_rank(const Group& group, bool reduces, SlowestRank& slowest) {
  at::Tensor out = at::zeros({6}), in = at::ones({6});
  std::vector<std::int64_t> sizes(group.rank() == 0 ? 3 : 0, 2), same = sizes;
  return see_mismatch(group, slowest, "all_to_all(float32, with sizes of parts)",
                      reduces ? "all_reduce(sum, float32[6])" : "all_to_all(float32[6])", [&] {
                        if (group.rank() > 0 && reduces) return group.all_reduce(out);
                        const auto work = group.backend().alltoall_base(out, in, sizes, same, {});
                        if (work) work->wait();
                      });
}

TEST(GroupTiming, SizesOfPartsOnOneRankAreAnErrorOnEveryRankWithinASecond) {
  for (const bool reduces : {false, true}) {
    for (const char* transport : {"shm", "tcp", "auto"}) {
      const bool two_hosts = transport == std::string("auto");
      expect_within(1s, [&](SlowestRank& slowest) {
        const auto codes = fork_ranks(
            3, transport,
            [&](const Group& group) { return see_sizes_on_one_rank(group, reduces, slowest); },
            two_hosts ? std::vector<std::string>{"a", "a", "b"} : std::vector<std::string>{});
        EXPECT_EQ(codes, std::vector<int>(3, 0)) << transport;
      });
    }
  }
}

// Two operations wait for a rank that does not take part. Both end with the timeout, including the
// one that was queued behind the other. Rank 0 then writes a byte to `done`. The other rank stays
// until it can read the byte, so that it is not lost as well.
int times_out(const Group& group, const std::array<int, 2>& done) {
  if (group.rank() == 1) {
    pollfd end{done[0], POLLIN, 0};
    return ::poll(&end, 1, 20'000) == 1 ? 0 : 3;
  }
  at::Tensor first = at::ones({300'000}), second = at::ones({300'000});
  const auto works = {group.all_reduce_async(first), group.all_reduce_async(second)};
  for (const auto& work : works) {
    try {
      work->wait();
      return 1;
    } catch (const Error& error) {
      if (error.code() != Errc::kTimeout || error.context().peer == 0) return 2;
    }
  }
  return ::write(done[1], "", 1) == 1 ? 0 : 3;
}

TEST(Group, ATimeoutEndsEveryOperationOfItsRank) {
  for (const char* transport : {"shm", "tcp"}) {
    std::array<int, 2> done{};
    ASSERT_EQ(::pipe(done.data()), 0);
    const auto codes = fork_ranks(2, transport, [&](const Group& group) {
      if (group.rank() == 0) group.backend().setTimeout(300ms);
      return times_out(group, done);
    });
    for (const int end : done) ::close(end);
    EXPECT_EQ(codes, std::vector<int>(2, 0)) << transport;
  }
}

TEST(GroupTiming, AKilledRankIsPeerLostOnTheSurvivorsWithinTwoSecondsInEveryOperation) {
  for (const char* transport : {"shm", "tcp"}) {
    for (bool receiving : {false, true}) {
      expect_within(2s, [&](SlowestRank& slowest) {
        const auto codes = fork_ranks(3, transport, [&](const Group& group) {
          if (group.rank() == 2) raise(SIGKILL);
          const auto start = Deadline::Clock::now();
          at::Tensor t = at::ones({100'000});
          try {
            if (receiving)
              group.recv(t, 2);
            else
              group.all_reduce(t);
          } catch (const Error& error) {
            slowest.report_since(start);
            const bool good = error.code() == Errc::kPeerLost && error.context().peer == 2;
            if (!good) std::fprintf(stderr, "%s\n", error.what());
            return good ? 0 : 1;
          }
          return 2;
        });
        EXPECT_EQ(codes, (std::vector<int>{0, 0, -SIGKILL}))
            << transport << (receiving ? " recv" : " all_reduce");
      });
    }
  }
}

// Runs all collectives in overlapping subgroups, and in subgroups of those.
int exercise_parts(const Group& group) {
  const int rank = group.rank();
  const Group pair = group.subgroup(rank < 2 ? std::vector{1, 0} : std::vector{2, 3}, "pair");
  const Group stripe = group.subgroup({rank % 2, rank % 2 + 2}, "stripe");
  exercise(pair);
  exercise(stripe);
  if (pair.rank() != (rank < 2 ? 1 - rank : rank - 2) || stripe.rank() != rank / 2) return 1;
  if (rank == 2) return 0;
  const Group three = group.subgroup({0, 1, 3}, "pair");  // same name, other ranks
  exercise(three);
  if (three.rank() < 2) exercise(three.subgroup({0, 1}, "of a part"));
  exercise(group.subgroup({rank}, "alone"));
  return 0;
}

TEST(Group, MakesNestedSubgroupsAsThreadsAndProcesses) {
  replicate(
      4, [](const Group& group) { EXPECT_EQ(exercise_parts(group), 0); }, 20s);
  for (const char* transport : {"shm", "tcp"})
    EXPECT_EQ(fork_ranks(4, transport, exercise_parts), std::vector<int>(4, 0)) << transport;
}

TEST(Group, SynchronousCallsRunAfterPostedOnes) {
  replicate(2, [](const Group& group) {
    for (int round = 0; round < 50; ++round) {
      at::Tensor value = at::full({3}, group.rank() + 1.0);
      const auto posted = group.all_reduce_async(value);  // 1 + 2
      group.all_reduce(value, ReduceOp::kProduct);        // 3 * 3, not 1 * 2 before
      posted->wait();
      ASSERT_EQ(value[0].item<double>(), 9.0) << round;
      at::Tensor first = at::full({1}, 1.0), second = at::full({1}, 2.0), into = at::empty({1}),
                 then = at::empty({1});
      if (group.rank() == 0) {
        std::vector<at::Tensor> tensors{first};
        const auto sent = group.backend().send(tensors, 1, 5);
        group.send(second, 1, 5);
        group.wait(sent, "send");
      } else {
        group.recv(into, 0, 5);
        group.recv(then, 0, 5);
        ASSERT_EQ(into[0].item<double>(), 1.0);
        ASSERT_EQ(then[0].item<double>(), 2.0);
      }
    }
  });
}

TEST(Group, RejectsSubgroupsWithoutThisRankOrWithARankTwice) {
  replicate(2, [](const Group& group) {
    for (const auto& ranks :
         std::vector<std::vector<int>>{{}, {1 - group.rank()}, {0, 1, 1}, {0, 1, 2}, {-1, 0, 1}}) {
      EXPECT_THROW(group.subgroup(ranks, "wrong"), Error);
    }
  });
}

// An expanded tensor cannot hold a result. It can be sent.
TEST(Group, RefusesAnExpandedTensorForAResultBeforeAnythingIsSent) {
  replicate(
      2,
      [](const Group& group) {
        at::Tensor expanded = at::ones({1, 3}).expand({4, 3}), plain = at::ones({4, 3}),
                   half = at::ones({2, 3});
        const std::vector<std::pair<const char*, std::function<void()>>> calls{
            {"all_reduce", [&] { group.all_reduce(expanded); }},
            {"all_reduce", [&] { group.all_reduce_async(expanded); }},
            {"broadcast", [&] { group.broadcast(expanded); }},
            {"broadcast", [&] { group.broadcast_async(expanded); }},
            {"all_gather", [&] { group.all_gather(expanded, half); }},
            {"all_gather", [&] { group.all_gather_async(expanded, half); }},
            {"reduce_scatter",
             [&] {
               group.reduce_scatter(expanded, at::ones({8, 3}));
             }},
            {"reduce_scatter",
             [&] {
               group.reduce_scatter_async(expanded, at::ones({8, 3}));
             }},
            {"all_to_all", [&] { group.all_to_all(expanded, plain); }},
            {"reduce", [&] { group.reduce(expanded); }},
            {"scatter",
             [&] {
               group.scatter(expanded, {plain, plain});
             }},
            {"recv", [&] { group.recv(expanded, 1 - group.rank()); }}};
        for (const auto& [name, call] : calls) {
          expect_refused(call, Errc::kInvalidArgument, std::string(name) + ": elements of");
        }
        at::Tensor all = at::zeros({8, 3});
        group.all_gather(all, expanded);  // as input
        EXPECT_TRUE(at::equal(all, at::ones({8, 3})));
        if (group.rank() == 0) group.send(expanded, 1);
        plain.mul_(group.rank() == 0 ? 1 : 0);
        if (group.rank() == 1) group.recv(plain, 0);
        EXPECT_TRUE(at::equal(plain, at::ones({4, 3})));
      },
      20s);
}

TEST(Group, AFailedReplicaEndsTheReplicasThatWaitForASubgroupWithIt) {
  try {
    replicate(2, [](const Group& group) {
      if (group.rank() == 0) throw Error(Errc::kUnavailable, "the cause");
      group.subgroup({0, 1}, "both");
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "the cause");
  }
}

TEST(GroupTiming, AnAbortEndsTheWaitForAMessageThatIsNeverSent) {
  for (bool began : {false, true}) {
    expect_within(1s, [&](SlowestRank& slowest) {
      replicate(
          2,
          [&](const Group& group) {
            if (group.rank() == 0) return group.abort(Error(Errc::kUnavailable, "the cause"));
            const auto start = Deadline::Clock::now();
            std::vector<at::Tensor> into{at::empty({3})};
            try {
              if (began)
                group.wait(group.backend().recv(into, 0, 1), "a test");
              else
                group.recv(into[0], 0, 1);
              FAIL();
            } catch (const Error& error) {
              slowest.report_since(start);
              EXPECT_EQ(error.code(), Errc::kAborted);
              EXPECT_NE(error.message().find("the cause"), std::string::npos) << error.message();
              // The wait or the operation itself notices it.
              EXPECT_TRUE(error.context().operation == "recv" ||
                          (began && error.context().operation == "a test"))
                  << error.context().operation;
            }
          },
          20s);
    });
  }
}

TEST(Group, RanksUseTcpWithoutSharedMemory) {
  setenv("WEFT_HEAP_MB", "0", 1);
  const auto codes = fork_ranks(2, "auto", [](const Group& group) {
    exercise(group);
    return group.host() == nullptr ? 0 : 1;
  });
  unsetenv("WEFT_HEAP_MB");
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(ForkRanks, KillsProcessesThatDoNotEndAndReportsWhyAForkFailed) {
  const auto codes = fork_ranks(
      2, "tcp",
      [](const Group& group) {
        while (group.rank() == 1) pause();
        return 3;
      },
      {}, 1s);
  EXPECT_EQ(codes, (std::vector<int>{3, -SIGKILL}));
  setenv("TMPDIR", "/proc/self", 1);
  EXPECT_THAT(
      refusal([] { fork_ranks(2, "tcp", [](const Group&) { return 0; }); }, Errc::kUnavailable),
      testing::HasSubstr("cannot create the file for the rendezvous"));
  unsetenv("TMPDIR");
}

TEST(Group, RecordsCallsOnTheTimelineOfTheirCallerWhicheverThreadRunsThem) {
  replicate(
      2,
      [](const Group& group) {
        observe::Trace trace;
        const observe::Trace::Use here(&trace, "main");
        at::Tensor t = at::ones({25});
        group.all_reduce(t);  // not recorded
        trace.record(true);
        group.barrier();
        group.all_reduce_async(t)->wait();
        const auto recorded = trace.take();
        ASSERT_EQ(recorded.spans.size(), 2u);
        EXPECT_EQ(recorded.spans[0].name, "weft:barrier");
        EXPECT_EQ(recorded.threads.at(static_cast<std::size_t>(recorded.spans[0].thread)), "main");
        EXPECT_EQ(recorded.spans[1].category, "comm");
        EXPECT_EQ(recorded.spans[1].name, "weft:all_reduce");
        EXPECT_EQ(recorded.spans[1].bytes, 100);
        EXPECT_EQ(recorded.threads.at(static_cast<std::size_t>(recorded.spans[1].thread)),
                  "communication");
      },
      20s);
}

TEST(Replicate, ThrowsTheFirstErrorAndEndsTheOtherReplicas) {
  EXPECT_THROW(replicate(
                   3,
                   [](Group group) {
                     if (group.rank() == 1) throw Error(Errc::kInvalidArgument, "no such thing");
                     at::Tensor t = at::ones({3});
                     group.all_reduce(t);
                   },
                   20s),
               Error);
}

}  // namespace
}  // namespace weft::comm
