// Groups over several hosts: WEFT_HOST_ID divides the processes of one machine into hosts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/base/deadline.h"
#include "weft/base/testing/in_time.h"
#include "weft/comm/testing/exercise.h"
#include "weft/comm/testing/failures.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace {

using namespace std::chrono_literals;
using Hosts = std::vector<std::string>;

const std::vector<Hosts> kLayouts = {
    {"a", "a", "b", "b"}, {"a", "a", "a", "b"}, {"a", "b", "a", "b", "b"}};

// Follows the documentation of HostSplit.
void all_reduce_by_hand(const HostSplit& split, at::Tensor& tensor) {
  const auto parts = tensor.tensor_split(split.carriers);
  for (int i = 0; i < split.carriers; ++i) {
    at::Tensor part = parts[static_cast<std::size_t>(i)];
    split.local.reduce(part, i);
  }
  if (split.across) {
    at::Tensor mine = parts[static_cast<std::size_t>(split.local.rank())];
    split.across->all_reduce(mine);
  }
  for (int i = 0; i < split.carriers; ++i) {
    at::Tensor part = parts[static_cast<std::size_t>(i)];
    split.local.broadcast(part, i);
  }
}

TEST(Split, SplitsIntoHostAndCrossHostGroupsWhoseSumsAddUp) {
  for (const auto& hosts : kLayouts) {
    const int world = static_cast<int>(hosts.size());
    const auto codes = fork_ranks(
        world, "auto",
        [&](const Group& group) {
          const HostSplit* split = group.split();
          if (split == nullptr || group.host() != nullptr || split->local.host() == nullptr)
            return 1;
          if (split->hosts[static_cast<std::size_t>(split->host)]
                          [static_cast<std::size_t>(split->local.rank())] != group.rank())
            return 2;
          for (int peer = 0; peer < world; ++peer) {
            const bool here = hosts[static_cast<std::size_t>(peer)] ==
                              hosts[static_cast<std::size_t>(group.rank())];
            const auto& mine = split->hosts[static_cast<std::size_t>(split->host)];
            if (here != (std::find(mine.begin(), mine.end(), peer) != mine.end())) return 3;
          }
          if (split->across.has_value() != (split->local.rank() < split->carriers)) return 4;
          if (split->across && (split->across->size() != 2 || split->across->rank() != split->host))
            return 5;
          at::Tensor t = internal::of_rank(group.rank(), {1001});
          all_reduce_by_hand(*split, t);
          return at::equal(t, internal::sum_over(world, {1001})) ? 0 : 6;
        },
        hosts);
    EXPECT_EQ(codes, std::vector<int>(hosts.size(), 0)) << hosts.size();
  }
}

TEST(Split, EveryGroupRunsEveryCollective) {
  for (const auto& hosts : kLayouts) {
    const auto codes = fork_ranks(
        static_cast<int>(hosts.size()), "auto",
        [](const Group& group) {
          internal::exercise(group);
          internal::exercise(group.split()->local);
          if (group.split()->across) internal::exercise(*group.split()->across);
          return 0;
        },
        hosts);
    EXPECT_EQ(codes, std::vector<int>(hosts.size(), 0)) << hosts.size();
  }
}

TEST(Split, LongArraysAreSentInPieces) {
  const auto codes = fork_ranks(4, "auto",
                                [](const Group& group) {
                                  constexpr std::int64_t kLength = 1'500'007;
                                  at::Tensor t = internal::of_rank(group.rank(), {kLength});
                                  group.all_reduce(t);
                                  if (!at::equal(t, internal::sum_over(4, {kLength}))) return 1;
                                  t = internal::of_rank(group.rank(), {kLength});
                                  group.broadcast(t, 3);
                                  return at::equal(t, internal::of_rank(3, {kLength})) ? 0 : 2;
                                },
                                {"a", "a", "b", "b"});
  EXPECT_EQ(codes, std::vector<int>(4, 0));
}

TEST(Split, OrdinaryMemoryMayHoldInputAndOutput) {
  const auto codes =
      fork_ranks(3, "auto",
                 [](const Group& group) {
                   constexpr std::int64_t kBlock = 1000;
                   std::vector<float> memory(3 * kBlock);
                   at::Tensor all = at::from_blob(memory.data(), {3 * kBlock});
                   all.copy_(internal::of_rank(group.rank(), {3 * kBlock}));
                   const auto own = [&](const at::Tensor& of) {
                     return of.narrow(0, group.rank() * kBlock, kBlock);
                   };
                   at::Tensor block = own(all);
                   group.reduce_scatter(block, all);
                   return at::equal(block, own(internal::sum_over(3, {3 * kBlock}))) ? 0 : 1;
                 },
                 {"a", "a", "b"});
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

// Numbers of many magnitudes, so that a different order of additions changes the sum.
at::Tensor rugged(int rank, std::int64_t count) {
  const at::Tensor i = at::arange(count, at::kLong) * 7919 + rank * 104'729;
  return (i.remainder(2003) - 1001).to(at::kFloat) * at::pow(2.0, i.remainder(41).to(at::kFloat));
}

at::Tensor along_the_tree(int first, int ranks, std::int64_t count) {
  if (ranks == 1) return rugged(first, count);
  int left = 1;
  while (2 * left < ranks) left *= 2;
  return along_the_tree(first, left, count) + along_the_tree(first + left, ranks - left, count);
}

int adds_in_order(const Group& group) {
  if (!group.has_ordered_sums()) return 1;
  for (const std::int64_t count : {3, 1000, 40'003}) {
    at::Tensor sum = rugged(group.rank(), count);
    group.all_reduce(sum);
    if (!at::equal(sum, along_the_tree(0, group.size(), count))) return 2;
    at::Tensor mean = rugged(group.rank(), count);
    group.all_reduce_async(mean, ReduceOp::kAvg)->wait();
    if (!at::equal(mean, sum / group.size())) return 3;
    at::Tensor block = at::empty({count});
    group.reduce_scatter(block, rugged(group.rank(), count * group.size()));
    const at::Tensor wanted = along_the_tree(0, group.size(), count * group.size());
    if (!at::equal(block, wanted.narrow(0, group.rank() * count, count))) return 4;
  }
  return 0;
}

TEST(OrderedSums, GiveTheSameBitsOnOneHostAndOnSeveral) {
  const auto code = [](int world, const std::string& transport, const Hosts& hosts) {
    const auto codes = fork_ranks(
        world,
        BackendOptions{
            .transport = parse_transport(transport), .ordered_sums = true, .timeout = 20s},
        [](const Group& group) {
          const int whole = adds_in_order(group);
          const bool among = group.rank() >= 1 && group.rank() <= 3;
          return whole != 0 || !among ? whole
                                      : 10 * adds_in_order(group.subgroup({1, 2, 3}, "most"));
        },
        hosts);
    return codes == std::vector<int>(static_cast<std::size_t>(world), 0)
               ? 0
               : *std::max_element(codes.begin(), codes.end());
  };
  EXPECT_EQ(code(4, "auto", {}), 0);
  EXPECT_EQ(code(4, "tcp", {}), 0);
  EXPECT_EQ(code(4, "auto", {"a", "a", "b", "b"}), 0);
  EXPECT_EQ(code(6, "auto", {"a", "a", "b", "b", "c", "c"}), 0);
  EXPECT_EQ(code(4, "auto", {"a", "b", "a", "b"}), 0);
  EXPECT_EQ(code(5, "auto", {"a", "a", "a", "b", "b"}), 0);
}

TEST(OrderedSums, KeepEveryCollectiveCorrect) {
  const auto codes = fork_ranks(4, BackendOptions{.ordered_sums = true, .timeout = 20s},
                                [](const Group& group) {
                                  internal::exercise(group);
                                  return 0;
                                },
                                {"a", "b", "a", "b"});
  EXPECT_EQ(codes, std::vector<int>(4, 0));
}

TEST(OrderedSums, AreNotPromisedUnlessRequested) {
  const auto ordered = [](const Group& group) { return group.has_ordered_sums() ? 1 : 0; };
  EXPECT_EQ(fork_ranks(3, "tcp", ordered), std::vector<int>(3, 0));
  EXPECT_EQ(fork_ranks(3, "auto", ordered, {"a", "a", "b"}), std::vector<int>(3, 0));
  EXPECT_EQ(fork_ranks(3, "auto", ordered), std::vector<int>(3, 1));
  EXPECT_EQ(fork_ranks(2, "tcp", ordered), std::vector<int>(2, 1)) << "two numbers have one sum";
}

TEST(Split, DoesNotExistOnOneHostOrWithOneRankPerHostOrOverTcp) {
  const auto none = [](const Group& group) { return group.split() == nullptr ? 0 : 1; };
  EXPECT_EQ(fork_ranks(2, "auto", none), std::vector<int>(2, 0));
  EXPECT_EQ(fork_ranks(2, "auto", none, {"a", "b"}), std::vector<int>(2, 0));
  EXPECT_EQ(fork_ranks(3, "tcp", none, {"a", "a", "b"}), std::vector<int>(3, 0));
}

TEST(SplitTiming, AMismatchIsAnErrorWithBothSignaturesOnEveryRankWithinASecond) {
  for (int odd : {0, 3}) {
    expect_within(1s, [&](SlowestRank& slowest) {
      const auto codes = fork_ranks(
          4, "auto", [&](const Group& group) { return see_mismatch(group, odd, slowest); },
          {"a", "a", "b", "b"});
      EXPECT_EQ(codes, std::vector<int>(4, 0)) << "rank " << odd << " differs";
    });
  }
}

// The operation in which the survivors wait when rank 3 is killed.
enum class Waits { kWhole, kAcross, kLocal, kReceive };

int survive(const Group& group, Waits waits, SlowestRank& slowest) {
  if (group.rank() == 3) raise(SIGKILL);
  const auto start = Deadline::Clock::now();
  at::Tensor t = at::ones({100'000});
  const HostSplit& split = *group.split();
  try {
    // Rank 0 does not call the all-reduce. Rank 1 waits for it and learns that a rank of another
    // host is lost.
    if (waits == Waits::kLocal && group.rank() == 1) {
      split.local.all_reduce(t);
    } else if (waits == Waits::kReceive) {
      group.recv(t, 3);
    } else if (waits == Waits::kAcross || waits == Waits::kLocal) {
      if (group.rank() == 1) split.across->all_reduce(t);
      group.recv(t, 3);
    } else {
      group.all_reduce(t);
    }
  } catch (const Error& error) {
    slowest.report_since(start);
    const bool good = error.code() == Errc::kPeerLost && error.context().peer == 3;
    if (!good)
      std::fprintf(stderr, "rank %d: %s, peer %d\n", group.rank(), error.what(),
                   error.context().peer);
    try {
      group.all_reduce(t);
    } catch (const Error& late) {
      return good && late.code() == Errc::kPeerLost && late.context().peer == 3 ? 0 : 1;
    }
  }
  return 2;
}

TEST(SplitTiming, AKilledRankIsPeerLostOnAllSurvivorsWithinTwoSecondsInEveryOperation) {
  for (Waits waits : {Waits::kWhole, Waits::kAcross, Waits::kLocal, Waits::kReceive}) {
    expect_within(2s, [&](SlowestRank& slowest) {
      const auto codes =
          fork_ranks(4, "auto", [&](const Group& group) { return survive(group, waits, slowest); },
                     {"a", "a", "b", "b"});
      EXPECT_EQ(codes, (std::vector<int>{0, 0, 0, -SIGKILL})) << static_cast<int>(waits);
    });
  }
}

}  // namespace
}  // namespace weft::comm
