#include "weft/comm/group.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdlib>
#include <thread>

#include "weft/base/deadline.h"
#include "weft/comm/fork_ranks.h"
#include "weft/comm/replicate.h"
#include "weft/net/host.h"

namespace weft::comm {
namespace {

using namespace std::chrono_literals;

at::Tensor of_rank(int rank, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return (at::arange(c10::multiply_integers(shape), at::TensorOptions(at::kLong)).remainder(11) + rank + 1).to(type).view(shape);
}

at::Tensor sum_over(int world, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  at::Tensor sum = at::zeros(shape, type);
  for (int rank = 0; rank < world; ++rank) sum += of_rank(rank, shape, type);
  return sum;
}

void expect(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what + " is wrong");
}

// Every operation of Group, small and large, on what the ranks know of each other.
void exercise(const Group& group) {
  const int rank = group.rank(), world = group.size();
  for (int64_t n : {3, 40'000}) {
    at::Tensor t = of_rank(rank, {n, 2});
    group.all_reduce(t);
    expect(at::equal(t, sum_over(world, {n, 2})), "all_reduce");
    t = of_rank(rank, {n, 2}).t();  // not contiguous
    group.all_reduce(t, ReduceOp::kMax);
    expect(at::equal(t, of_rank(world - 1, {n, 2}).t()) || n > 3, "all_reduce of a transposed tensor");
    t = of_rank(rank, {n}, at::kBFloat16);
    group.all_reduce(t, ReduceOp::kAvg);
    expect(at::allclose(t.to(at::kFloat), sum_over(world, {n}) / world, 1e-2), "all_reduce in bfloat16");
    t = of_rank(rank, {n}, at::kComplexFloat);
    group.all_reduce(t);
    expect(at::equal(at::real(t), sum_over(world, {n})), "all_reduce of complex numbers");

    auto first = of_rank(rank, {n}), second = of_rank(rank, {n}, at::kLong);
    auto one = group.all_reduce_async(first);
    auto two = group.all_reduce_async(second);
    two->wait();
    one->wait();
    expect(at::equal(first, sum_over(world, {n})) && at::equal(second, sum_over(world, {n}, at::kLong)), "all_reduce_async");
    expect(at::equal(one->getFuture()->value().toTensorVector()[0], first), "the future's value");

    t = of_rank(rank, {n});
    group.broadcast(t, world - 1);
    expect(at::equal(t, of_rank(world - 1, {n})), "broadcast");
    at::Tensor all = at::empty({world * n, 2});
    group.all_gather(all, of_rank(rank, {n, 2}));
    for (int peer = 0; peer < world; ++peer) expect(at::equal(all.narrow(0, peer * n, n), of_rank(peer, {n, 2})), "all_gather");
    at::Tensor mine = at::empty({n});
    group.reduce_scatter(mine, of_rank(rank, {world * n}));
    expect(at::equal(mine, sum_over(world, {world * n}).narrow(0, rank * n, n)), "reduce_scatter");
    at::Tensor swapped = at::empty({world * n});
    group.all_to_all(swapped, of_rank(rank, {world * n}));
    for (int peer = 0; peer < world; ++peer) {
      expect(at::equal(swapped.narrow(0, peer * n, n), of_rank(peer, {world * n}).narrow(0, rank * n, n)), "all_to_all");
    }
    t = of_rank(rank, {n});
    group.reduce(t, 0, ReduceOp::kSum);
    expect(at::equal(t, rank == 0 ? sum_over(world, {n}) : of_rank(rank, {n})), "reduce");
    const auto gathered = group.gather(of_rank(rank, {n}), 0);
    expect(rank != 0 || static_cast<int>(gathered.size()) == world, "the number of gathered tensors");
    for (std::size_t peer = 0; peer < gathered.size(); ++peer)
      expect(at::equal(gathered[peer], of_rank(static_cast<int>(peer), {n})), "gather");
    t = at::empty({n});
    group.scatter(t, gathered, 0);
    expect(at::equal(t, of_rank(rank, {n})), "scatter");
    const int right = (rank + 1) % world, left = (rank + world - 1) % world;
    at::Tensor from = at::empty({n});
    std::thread sender([&] { group.send(of_rank(rank, {n}), right, 7); });
    group.recv(from, left, 7);
    sender.join();
    expect(at::equal(from, of_rank(left, {n})), "send and recv");
  }
  group.barrier();
}

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

TEST(Group, TensorsMadeAfterTheAllocatorCanBeReadByPeers) {
  const auto codes = fork_ranks(
      2, "shm", [](const Group& group) { return group.host()->token(at::empty({100}).data_ptr()) != net::Host::kNoToken ? 0 : 1; });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(Group, AMismatchIsAnErrorOnEveryRankShowingBothWithinASecond) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = fork_ranks(3, transport, [](const Group& group) {
      at::Tensor t = group.rank() == 1 ? at::ones({4, 2}, at::kDouble) : at::ones({4, 2});
      const auto start = Deadline::Clock::now();
      try {
        group.all_reduce(t);
      } catch (const Error& error) {
        const std::string what = error.what();
        const bool both = what.find("float32[4, 2]") != std::string::npos && what.find("float64[4, 2]") != std::string::npos;
        if (!both) std::fprintf(stderr, "%s\n", what.c_str());
        return both && Deadline::Clock::now() - start < 1s ? 0 : 1;
      }
      return 2;
    });
    EXPECT_EQ(codes, std::vector<int>(3, 0)) << transport;
  }
}

TEST(Group, AKilledRankIsPeerLostOnTheSurvivorsWhateverTheyWaitIn) {
  for (const char* transport : {"shm", "tcp"}) {
    for (bool receiving : {false, true}) {
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
          const bool good = error.code() == Errc::kPeerLost && error.context().peer == 2 && Deadline::Clock::now() - start < 2s;
          if (!good) std::fprintf(stderr, "%s\n", error.what());
          return good ? 0 : 1;
        }
        return 2;
      });
      EXPECT_EQ(codes, (std::vector<int>{0, 0, -SIGKILL})) << transport << (receiving ? " recv" : " all_reduce");
    }
  }
}

TEST(Group, WithoutSharedMemoryRanksStillWorkOverTcp) {
  setenv("WEFT_HEAP_MB", "0", 1);
  const auto codes = fork_ranks(2, "auto", [](const Group& group) {
    exercise(group);
    return group.host() == nullptr ? 0 : 1;
  });
  unsetenv("WEFT_HEAP_MB");
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(Replicate, ThrowsTheFirstErrorAndEndsTheOthers) {
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
