#include "weft/net/memory/direct.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <numeric>

#include "weft/base/deadline.h"
#include "weft/base/testing/in_time.h"
#include "weft/net/memory/heap.h"
#include "weft/net/memory/testing/ranks.h"

namespace weft::net {
namespace direct_test {

using namespace std::chrono_literals;
using internal::run_processes;
using internal::run_threads;

float value(int rank, std::int64_t i) {
  return static_cast<float>((rank + 1) * 3 + static_cast<int>(i % 97));
}

std::vector<float> filled(int rank, std::int64_t count) {
  std::vector<float> data(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) data[static_cast<std::size_t>(i)] = value(rank, i);
  return data;
}

float summed(int world, std::int64_t i) {
  float sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += value(rank, i);
  return sum;
}

DirectArgs args_of(const void* in, void* out, std::int64_t count, int root = 0) {
  return {.input = in, .output = out, .count = count, .root = root, .timeout = 20s};
}

// Runs every collective once on data from value(), and throws for a wrong result. The sizes cover
// all paths.
void check_all(Host& host, std::int64_t count) {
  Direct direct(host, 20s);
  const int rank = host.rank(), world = host.world();
  const auto mine = filled(rank, count);
  const auto n = static_cast<std::size_t>(count), all = n * static_cast<std::size_t>(world);
  const auto expect = [&](bool good, const char* what) {
    if (!good)
      throw std::runtime_error(std::string(what) + " is wrong at rank " + std::to_string(rank) +
                               ", count " + std::to_string(count));
  };
  std::vector<float> out(n);
  direct.all_reduce(args_of(mine.data(), out.data(), count));
  for (std::int64_t i = 0; i < count; ++i)
    expect(out[static_cast<std::size_t>(i)] == summed(world, i), "all_reduce");
  auto in_place = mine;
  direct.all_reduce(args_of(in_place.data(), in_place.data(), count));
  expect(in_place == out, "all_reduce in place");

  for (int root = 0; root < world; root += std::max(1, world - 1)) {
    std::vector<float> reduced(n, -1);
    direct.reduce(args_of(mine.data(), reduced.data(), count, root));
    if (rank == root) expect(reduced == out, "reduce");
    auto sent = mine;
    direct.broadcast(args_of(sent.data(), sent.data(), count, root));
    expect(sent == filled(root, count), "broadcast in place");
    std::vector<float> got(n, -1);
    direct.broadcast(args_of(rank == root ? mine.data() : nullptr, got.data(), count, root));
    expect(got == sent, "broadcast");
    std::vector<float> gathered(all, -1);
    direct.gather(args_of(mine.data(), gathered.data(), count, root));
    for (std::size_t i = 0; rank == root && i < all; ++i)
      expect(gathered[i] == value(static_cast<int>(i / n), static_cast<std::int64_t>(i % n)),
             "gather");
    std::vector<float> blocks = filled(root, count * world), block(n, -1);
    direct.scatter(args_of(blocks.data(), block.data(), count, root));
    for (std::size_t i = 0; i < n; ++i)
      expect(block[i] == value(root, static_cast<std::int64_t>(i) + rank * count), "scatter");
  }
  std::vector<float> gathered(all, -1);
  direct.all_gather(args_of(mine.data(), gathered.data(), count));
  for (std::size_t i = 0; i < all; ++i)
    expect(gathered[i] == value(static_cast<int>(i / n), static_cast<std::int64_t>(i % n)),
           "all_gather");

  const auto wide = filled(rank, count * world);
  std::vector<float> shard(n, -1), swapped(all, -1);
  direct.reduce_scatter(args_of(wide.data(), shard.data(), count));
  for (std::size_t i = 0; i < n; ++i)
    expect(shard[i] == summed(world, static_cast<std::int64_t>(i) + rank * count),
           "reduce_scatter");
  direct.all_to_all(args_of(wide.data(), swapped.data(), count));
  for (std::size_t i = 0; i < all; ++i) {
    expect(swapped[i] ==
               value(static_cast<int>(i / n), static_cast<std::int64_t>(i % n) + rank * count),
           "all_to_all");
  }
  auto swapped_in_place = wide;
  direct.all_to_all(args_of(swapped_in_place.data(), swapped_in_place.data(), count));
  expect(swapped_in_place == swapped, "all_to_all in place");
  direct.barrier({.timeout = 20s});
}

TEST(Direct, RunsEveryCollectiveAsThreadsAtEverySize) {
  for (int world : {1, 2, 3, 5}) {
    for (std::int64_t count : {0, 1, 7, 33, 1000, 1025, 5000, 70'001})
      run_threads(world, [&](Host& host) { check_all(host, count); });
  }
}

TEST(Direct, RunsEveryCollectiveAsProcessesOnOrdinaryMemory) {
  for (int world : {2, 4}) {
    const auto statuses = run_processes(world, [&](Host& host) {
      for (std::int64_t count : {1, 1000, 5000, 70'001, 300'001}) check_all(host, count);
      return 0;
    });
    for (int status : statuses) EXPECT_EQ(status, 0);
  }
}

TEST(Direct, ReducesArraysInTheHeapsInPlace) {
  const auto statuses = run_processes(3, [](Host& host) {
    Direct direct(host, 20s);
    const std::int64_t count = 100'003;
    auto* data = reinterpret_cast<float*>(host.allocate(count * sizeof(float)));
    for (std::int64_t i = 0; i < count; ++i) data[i] = value(host.rank(), i);
    direct.all_reduce(args_of(data, data, count));
    for (std::int64_t i = 0; i < count; ++i) {
      if (data[i] != summed(3, i)) return 1;
    }
    return 0;
  });
  for (int status : statuses) EXPECT_EQ(status, 0);
}

TEST(Direct, BroadcastsAndGathersArraysInTheHeaps) {
  const auto statuses = run_processes(3, [](Host& host) {
    Direct direct(host, 20s);
    const std::int64_t count = 300'003, root = 1;
    auto* data = reinterpret_cast<float*>(host.allocate(count * sizeof(float)));
    auto* all = reinterpret_cast<float*>(host.allocate(3 * count * sizeof(float)));
    for (std::int64_t i = 0; i < count; ++i) data[i] = value(host.rank(), i);
    direct.gather(args_of(data, all, count, root));
    for (std::int64_t i = 0; host.rank() == root && i < 3 * count; ++i) {
      if (all[i] != value(static_cast<int>(i / count), i % count)) return 1;
    }
    direct.broadcast(args_of(data, data, count, root));
    for (std::int64_t i = 0; i < count; ++i) {
      if (data[i] != value(root, i)) return 2;
    }
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(3, 0));
}

std::vector<std::string> messages_of_different_collectives(SlowestRank& slowest) {
  auto hosts = make_thread_hosts(3);
  std::vector<std::string> messages(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Direct direct(*hosts[rank], 20s);
      std::vector<float> data(12, 1.0f);
      const std::int64_t shape[] = {3, 4}, other[] = {12};
      DirectArgs args = args_of(data.data(), data.data(), 12);
      args.shape = rank == 1 ? other : shape;
      args.dims = rank == 1 ? 1 : 2;
      args.dtype = rank == 1 ? DType::kI32 : DType::kF32;
      const auto start = Deadline::Clock::now();
      try {
        direct.all_reduce(args);
      } catch (const Error& error) {
        messages[rank] = error.what();
        slowest.report_since(start);
      }
      try {
        direct.barrier({.timeout = 20s});
      } catch (const Error& error) {
        if (error.code() != Errc::kAborted) messages[rank] += " (not aborted)";
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return messages;
}

TEST(DirectTiming, DifferentCollectivesEndOnAllRanksWithinASecondWithBothSignatures) {
  expect_within(1s, [](SlowestRank& slowest) {
    for (const auto& message : messages_of_different_collectives(slowest)) {
      EXPECT_NE(message.find("all_reduce(sum, float32[3, 4])"), std::string::npos) << message;
      EXPECT_NE(message.find("all_reduce(sum, int32[12])"), std::string::npos) << message;
      EXPECT_EQ(message.find("not aborted"), std::string::npos) << message;
    }
  });
}

TEST(DirectTiming, AKilledRankIsPeerLostOnEverySurvivorWithinTwoSeconds) {
  expect_within(2s, [](SlowestRank& slowest) {
    const auto statuses = run_processes(3, [&](Host& host) {
      Direct direct(host, 20s);
      auto start = Deadline::Clock::now();
      try {
        direct.barrier({.timeout = 20s});
        if (host.rank() == 1) raise(SIGKILL);
        start = Deadline::Clock::now();
        std::vector<float> data(100'000, 1.0f);
        direct.all_reduce(args_of(data.data(), data.data(), 100'000));
      } catch (const Error& error) {
        slowest.report_since(start);
        return error.code() == Errc::kPeerLost && error.context().peer == 1 ? 0 : 3;
      }
      return 4;
    });
    EXPECT_EQ(statuses[0], 0);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(statuses[2], 0);
  });
}

TEST(Direct, AStoppedRankIsNamedByTheOthersAtTheDeadline) {
  const auto statuses = run_processes(
      2,
      [](Host& host) {
        Direct direct(host, 20s);
        if (host.rank() == 1) raise(SIGSTOP);
        try {
          direct.barrier({.timeout = 300ms});
        } catch (const Error& error) {
          return error.code() == Errc::kTimeout && error.context().peer == 1 ? 0 : 3;
        }
        return 4;
      },
      [](const std::vector<pid_t>& children) {
        int status = 0;
        waitpid(children[0], &status, WNOWAIT | WEXITED);
        siginfo_t info;
        waitid(P_PID, static_cast<id_t>(children[0]), &info, WEXITED | WNOWAIT);
        kill(children[1], SIGKILL);
      });
  EXPECT_EQ(statuses[0], 0);
}

TEST(Direct, MoreRanksThanProcessorsWaitWithoutUsingCpuTime) {
  const int world = 4 * static_cast<int>(std::thread::hardware_concurrency());
  const auto statuses = run_processes(world, [](Host& host) {
    Direct direct(host, 20s);
    direct.barrier({.timeout = 20s});
    if (host.rank() == 0) std::this_thread::sleep_for(300ms);  // the other ranks wait meanwhile
    rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    direct.barrier({.timeout = 20s});
    getrusage(RUSAGE_SELF, &after);
    const auto microseconds = [](const rusage& u) {
      return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1'000'000L + u.ru_utime.tv_usec +
             u.ru_stime.tv_usec;
    };
    return microseconds(after) - microseconds(before) < 60'000 ? 0 : 1;
  });
  for (int status : statuses) EXPECT_EQ(status, 0);
}

}  // namespace direct_test
}  // namespace weft::net
