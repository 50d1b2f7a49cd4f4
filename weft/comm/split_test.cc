// Groups over several hosts: the processes of one machine, cut in hosts by WEFT_HOST_ID.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/base/deadline.h"
#include "weft/comm/fork_ranks.h"
#include "weft/comm/internal/exercise.h"

namespace weft::comm {
namespace {

using namespace std::chrono_literals;
using Hosts = std::vector<std::string>;

const std::vector<Hosts> kLayouts = {{"a", "a", "b", "b"}, {"a", "a", "a", "b"}, {"a", "b", "a", "b", "b"}};

// As HostSplit says that it goes.
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

TEST(Split, GivesTheGroupsOfBothLevelsAndTheyAddUp) {
  for (const auto& hosts : kLayouts) {
    const int world = static_cast<int>(hosts.size());
    const auto codes = fork_ranks(
        world, "auto",
        [&](const Group& group) {
          const HostSplit* split = group.split();
          if (split == nullptr || group.host() != nullptr || split->local.host() == nullptr) return 1;
          if (split->hosts[static_cast<std::size_t>(split->host)][static_cast<std::size_t>(split->local.rank())] != group.rank()) return 2;
          for (int peer = 0; peer < world; ++peer) {
            const bool here = hosts[static_cast<std::size_t>(peer)] == hosts[static_cast<std::size_t>(group.rank())];
            const auto& mine = split->hosts[static_cast<std::size_t>(split->host)];
            if (here != (std::find(mine.begin(), mine.end(), peer) != mine.end())) return 3;
          }
          if (split->across.has_value() != (split->local.rank() < split->carriers)) return 4;
          if (split->across && (split->across->size() != 2 || split->across->rank() != split->host)) return 5;
          at::Tensor t = internal::of_rank(group.rank(), {1001});
          all_reduce_by_hand(*split, t);
          return at::equal(t, internal::sum_over(world, {1001})) ? 0 : 6;
        },
        hosts);
    EXPECT_EQ(codes, std::vector<int>(hosts.size(), 0)) << hosts.size();
  }
}

TEST(Split, EveryGroupDoesEveryCollective) {
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

TEST(Split, LongArraysCrossInPieces) {
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

TEST(Split, IsNotThereOnOneHostNorWithOneRankAHostNorOverTcp) {
  const auto none = [](const Group& group) { return group.split() == nullptr ? 0 : 1; };
  EXPECT_EQ(fork_ranks(2, "auto", none), std::vector<int>(2, 0));
  EXPECT_EQ(fork_ranks(2, "auto", none, {"a", "b"}), std::vector<int>(2, 0));
  EXPECT_EQ(fork_ranks(3, "tcp", none, {"a", "a", "b"}), std::vector<int>(3, 0));
}

TEST(Split, AMismatchIsAnErrorOnEveryRankShowingBothWithinASecond) {
  for (int odd : {0, 3}) {
    const auto codes =
        fork_ranks(4, "auto",
                   [&](const Group& group) {
                     at::Tensor t = group.rank() == odd ? at::ones({4, 2}, at::kDouble) : at::ones({4, 2});
                     const auto start = Deadline::Clock::now();
                     try {
                       group.all_reduce(t);
                     } catch (const Error& error) {
                       const std::string what = error.what();
                       const bool both = what.find("float32[4, 2]") != std::string::npos && what.find("float64[4, 2]") != std::string::npos;
                       const bool good = both && error.code() == Errc::kInvalidArgument && Deadline::Clock::now() - start < 1s;
                       if (!good) std::fprintf(stderr, "%s\n", what.c_str());
                       return good ? 0 : 1;
                     }
                     return 2;
                   },
                   {"a", "a", "b", "b"});
    EXPECT_EQ(codes, std::vector<int>(4, 0)) << "rank " << odd << " differs";
  }
}

// What the survivors wait in when rank 3 is killed.
enum class Waits { kWhole, kAcross, kLocal, kReceive };

int survive(const Group& group, Waits waits) {
  if (group.rank() == 3) raise(SIGKILL);
  const auto start = Deadline::Clock::now();
  at::Tensor t = at::ones({100'000});
  const HostSplit& split = *group.split();
  try {
    // Rank 0 never comes to its host's all-reduce: rank 1 waits for it and hears of another host's rank.
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
    const bool good = error.code() == Errc::kPeerLost && error.context().peer == 3 && Deadline::Clock::now() - start < 2s;
    if (!good) std::fprintf(stderr, "rank %d: %s, peer %d\n", group.rank(), error.what(), error.context().peer);
    try {
      group.all_reduce(t);
    } catch (const Error& late) {
      return good && late.code() == Errc::kPeerLost && late.context().peer == 3 ? 0 : 1;
    }
  }
  return 2;
}

TEST(Split, AKilledRankIsPeerLostOnAllSurvivorsWhicheverLegTheyWaitIn) {
  for (Waits waits : {Waits::kWhole, Waits::kAcross, Waits::kLocal, Waits::kReceive}) {
    const auto codes = fork_ranks(4, "auto", [&](const Group& group) { return survive(group, waits); }, {"a", "a", "b", "b"});
    EXPECT_EQ(codes, (std::vector<int>{0, 0, 0, -SIGKILL})) << static_cast<int>(waits);
  }
}

}  // namespace
}  // namespace weft::comm
