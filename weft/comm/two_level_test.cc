// The two-level engine: ranks are threads, hosts are groups of threads that share memory, and the
// network counts its bytes.
#include "weft/comm/internal/two_level.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "weft/base/testing/in_time.h"
#include "weft/comm/internal/segments.h"
#include "weft/comm/internal/split.h"
#include "weft/net/inproc/inproc.h"

namespace weft::comm::internal {
namespace {

using namespace std::chrono_literals;
using schedule::Collective;

// Counts the bytes that leave each host.
class CountingEndpoint final : public net::Endpoint {
 public:
  CountingEndpoint(std::unique_ptr<net::Endpoint> inner, HostMap map,
                   std::atomic<std::int64_t>& left)
      : inner_(std::move(inner)), map_(std::move(map)), left_(left) {}
  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }
  const char* name() const override { return inner_->name(); }
  std::uint32_t epoch() const override { return inner_->epoch(); }
  void exchange(net::Channel channel, std::span<const net::Send> sends,
                std::span<const net::Recv> recvs, Deadline deadline) override {
    const auto& here = map_.members();
    for (const auto& send : sends) {
      if (std::find(here.begin(), here.end(), send.peer) == here.end())
        left_ += static_cast<std::int64_t>(send.bytes.size());
    }
    inner_->exchange(channel, sends, recvs, deadline);
  }
  int await_any(net::Channel channel, Deadline deadline) override {
    return inner_->await_any(channel, deadline);
  }
  void fail(const Error& why) noexcept override { inner_->fail(why); }
  std::optional<Error> failure() const override { return inner_->failure(); }

 private:
  const std::unique_ptr<net::Endpoint> inner_;
  const HostMap map_;
  std::atomic<std::int64_t>& left_;
};

struct Rank {
  Engine& engine;
  const HostMap& map;
  std::function<void()> leave;  // ends the engine; the rank stops taking part
};

// Runs fn on all ranks of a group in which rank r is on host hosts[r]. Returns the bytes that left
// each host.
std::vector<std::int64_t> on_hosts(const std::vector<std::string>& hosts,
                                   const std::function<void(Rank)>& fn) {
  const int world = static_cast<int>(hosts.size());
  const HostMap all = HostMap::of(hosts, 0);
  std::vector<std::atomic<std::int64_t>> left(all.hosts.size());
  std::vector<std::vector<std::unique_ptr<net::Host>>> memory;
  for (const auto& ranks : all.hosts)
    memory.push_back(net::make_thread_hosts(static_cast<int>(ranks.size())));
  auto endpoints = net::make_inproc(world);
  std::vector<std::exception_ptr> errors(hosts.size());
  std::vector<std::unique_ptr<Engine>> engines(hosts.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      const HostMap map = HostMap::of(hosts, rank);
      const auto host = static_cast<std::size_t>(map.host);
      try {
        auto endpoint =
            std::make_shared<CountingEndpoint>(std::move(endpoints[at]), map, left[host]);
        engines[at] =
            make_split_engine(std::move(memory[host][static_cast<std::size_t>(map.local)]),
                              std::move(endpoint), map, {20s});
        fn({*engines[at], map, [&, at] { engines[at].reset(); }});
      } catch (const std::exception& error) {
        errors[at] = std::current_exception();
        if (engines[at]) engines[at]->fail(Error(Errc::kAborted, error.what()));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return {left.begin(), left.end()};
}

// Whole numbers, so that sums are exact in any order.
std::vector<float> numbers(int rank, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<float>((i * 7 + rank * 13) % 101);
  return values;
}

std::vector<float> sums(int world, std::int64_t count) {
  std::vector<float> total(static_cast<std::size_t>(count));
  for (int rank = 0; rank < world; ++rank) {
    const auto part = numbers(rank, count);
    std::transform(total.begin(), total.end(), part.begin(), total.begin(), std::plus<>());
  }
  return total;
}

std::vector<float> part_of(const std::vector<float>& values, std::int64_t begin,
                           std::int64_t count) {
  return {values.begin() + begin, values.begin() + begin + count};
}

// Runs all collectives on blocks of n elements, with separate input and output arrays, for each
// root.
void exercise(Rank rank, std::int64_t n) {
  const int me = rank.map.rank, world = rank.map.world;
  const auto run = [&](Collective collective, const std::vector<float>* in, std::vector<float>* out,
                       int root = 0, ReduceOp op = ReduceOp::kSum) {
    rank.engine.run(collective, {.input = in != nullptr ? in->data() : nullptr,
                                 .output = out != nullptr ? out->data() : nullptr,
                                 .count = n,
                                 .op = op,
                                 .root = root,
                                 .timeout = 20s});
  };
  const auto own = numbers(me, n), whole = numbers(me, n * world);
  std::vector<float> one(static_cast<std::size_t>(n)), many(static_cast<std::size_t>(n * world));
  run(Collective::kAllReduce, &own, &one);
  EXPECT_EQ(one, sums(world, n));
  one = own;
  run(Collective::kAllReduce, &one, &one, 0, ReduceOp::kMax);
  for (std::int64_t i = 0; i < n; i += 97) {
    float most = 0;
    for (int peer = 0; peer < world; ++peer)
      most = std::max(most, static_cast<float>((i * 7 + peer * 13) % 101));
    ASSERT_EQ(one[static_cast<std::size_t>(i)], most);
  }
  run(Collective::kReduceScatter, &whole, &one);
  EXPECT_EQ(one, part_of(sums(world, n * world), me * n, n));
  run(Collective::kAllGather, &own, &many);
  for (int peer = 0; peer < world; ++peer) EXPECT_EQ(part_of(many, peer * n, n), numbers(peer, n));
  run(Collective::kAllToAll, &whole, &many);
  for (int peer = 0; peer < world; ++peer)
    EXPECT_EQ(part_of(many, peer * n, n), part_of(numbers(peer, n * world), me * n, n));
  many = whole;
  run(Collective::kAllToAll, &many, &many);
  for (int peer = 0; peer < world; ++peer)
    EXPECT_EQ(part_of(many, peer * n, n), part_of(numbers(peer, n * world), me * n, n));
  for (int root = 0; root < world; ++root) {
    one = me == root ? own : std::vector<float>(own.size(), -1.0f);
    run(Collective::kBroadcast, &one, &one, root);
    EXPECT_EQ(one, numbers(root, n));
    std::vector<float> result(own.size(), -1.0f);
    run(Collective::kReduce, &own, me == root ? &result : nullptr, root);
    EXPECT_EQ(result, me == root ? sums(world, n) : std::vector<float>(own.size(), -1.0f));
    run(Collective::kGather, &own, me == root ? &many : nullptr, root);
    if (me == root) {
      for (int peer = 0; peer < world; ++peer)
        EXPECT_EQ(part_of(many, peer * n, n), numbers(peer, n));
    }
    run(Collective::kScatter, me == root ? &whole : nullptr, &one, root);
    EXPECT_EQ(one, part_of(numbers(root, n * world), me * n, n));
  }
  rank.engine.run(Collective::kBarrier, {.timeout = 20s});
}

const std::vector<std::vector<std::string>> kLayouts = {{"a", "a", "b", "b"},
                                                        {"a", "a", "a", "b"},
                                                        {"a", "b", "a", "b", "b"},
                                                        {"a", "b", "c", "a", "b", "c", "a"}};

TEST(TwoLevel, RunsEveryCollectiveOnEqualAndUnequalHosts) {
  for (const auto& hosts : kLayouts) {
    for (std::int64_t n : {0, 1, 37, 5000}) on_hosts(hosts, [n](Rank rank) { exercise(rank, n); });
  }
}

TEST(TwoLevel, RunsEveryCollectiveInManyChunksOnTwoThreads) {
  for (const auto& hosts : {kLayouts[0], kLayouts[2]})
    on_hosts(hosts, [](Rank rank) { exercise(rank, 400'003); });
}

TEST(TwoLevel, GivesTheSameBitsToAllRanksAndOnEveryRun) {
  for (const auto& hosts : kLayouts) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      std::vector<std::vector<float>> results;
      for (int run = 0; run < 2; ++run) {
        std::vector<std::vector<float>> values(hosts.size());
        on_hosts(hosts, [&](Rank rank) {
          auto& mine = values[static_cast<std::size_t>(rank.map.rank)];
          mine.resize(300'001);
          for (std::size_t i = 0; i < mine.size(); ++i)
            mine[i] =
                1.0f / static_cast<float>(
                           1 + (i * 31 + static_cast<std::size_t>(rank.map.rank) * 17) % 1009);
          rank.engine.run(Collective::kAllReduce, {.input = mine.data(),
                                                   .output = mine.data(),
                                                   .count = 300'001,
                                                   .op = op,
                                                   .timeout = 20s});
        });
        results.insert(results.end(), values.begin(), values.end());
      }
      for (const auto& result : results)
        ASSERT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
    }
  }
}

// 40000, 40032 and 40064 in float16; their sum is infinite.
TEST(TwoLevel, AveragesFloat16WhoseSumIsOutOfRange) {
  for (const std::int64_t n : {5, 5000}) {
    on_hosts({"a", "a", "b"}, [n](Rank rank) {
      const int me = rank.map.rank;
      const std::vector<std::uint16_t> in(static_cast<std::size_t>(3 * n),
                                          static_cast<std::uint16_t>(0x78e2 + me));
      const std::vector<std::uint16_t> mean(static_cast<std::size_t>(n), 0x78e3);
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
        std::vector<std::uint16_t> out(mean.size());
        const bool has_output = collective != Collective::kReduce || me == 1;
        rank.engine.run(collective, {.input = in.data(),
                                     .output = has_output ? out.data() : nullptr,
                                     .count = n,
                                     .dtype = DType::kF16,
                                     .op = ReduceOp::kAvg,
                                     .root = 1,
                                     .timeout = 20s});
        EXPECT_EQ(out == mean, has_output) << schedule::to_string(collective) << " " << n;
      }
    });
  }
}

// Elements that leave each host, as TwoLevel's header documents.
std::vector<std::int64_t> traffic(const std::vector<std::string>& hosts, Collective collective,
                                  std::int64_t n) {
  const auto call = [&](int times) {
    return on_hosts(hosts, [&](Rank rank) {
      std::vector<float> in(static_cast<std::size_t>(n * rank.map.world)), out(in.size());
      for (int i = 0; i < times; ++i)
        rank.engine.run(collective,
                        {.input = in.data(), .output = out.data(), .count = n, .timeout = 20s});
    });
  };
  auto bytes = call(1);
  const auto headers =
      on_hosts(hosts, [&](Rank rank) { rank.engine.run(Collective::kBarrier, {.timeout = 20s}); });
  for (std::size_t host = 0; host < bytes.size(); ++host)
    bytes[host] = (bytes[host] - headers[host]) / 4;
  return bytes;
}

TEST(TwoLevel, SendsTheDocumentedBytesBetweenHosts) {
  const std::int64_t n = 120'000;
  const std::vector<std::string> equal{"a", "a", "b", "b"}, unequal{"a", "a", "a", "b"},
      three{"a", "b", "c", "a", "b", "c"};
  using Elements = std::vector<std::int64_t>;
  EXPECT_EQ(traffic(equal, Collective::kAllReduce, n), (Elements{n, n}));
  EXPECT_EQ(traffic(unequal, Collective::kAllReduce, n), (Elements{n, n}));
  for (const std::int64_t sent : traffic(three, Collective::kAllReduce, n))
    EXPECT_NEAR(static_cast<double>(sent), 2.0 * n * 2 / 3, 200);
  EXPECT_EQ(traffic(equal, Collective::kAllGather, n), (Elements{2 * n, 2 * n}));
  EXPECT_EQ(traffic(unequal, Collective::kAllGather, n), (Elements{3 * n, n}));
  EXPECT_EQ(traffic(equal, Collective::kReduceScatter, n), (Elements{2 * n, 2 * n}));
  EXPECT_EQ(traffic(unequal, Collective::kReduceScatter, n), (Elements{n, 3 * n}));
  EXPECT_EQ(traffic(equal, Collective::kBroadcast, n), (Elements{n, 0}));
  EXPECT_EQ(traffic(equal, Collective::kReduce, n), (Elements{0, n}));
  EXPECT_EQ(traffic(equal, Collective::kGather, n), (Elements{0, 2 * n}));
  EXPECT_EQ(traffic(equal, Collective::kScatter, n), (Elements{2 * n, 0}));
  EXPECT_EQ(traffic(equal, Collective::kAllToAll, n), (Elements{4 * n, 4 * n}));
}

TEST(TwoLevel, EveryRankOfAHostSendsItsShare) {
  // Two hosts of three and two: boundaries at thirds and halves, four segments, all of one rank on
  // each host.
  const std::vector<std::string> hosts{"a", "a", "a", "b", "b"};
  std::vector<std::int64_t> carried(hosts.size());
  for (int rank = 0; rank < 5; ++rank) {
    for (const Segment& segment : segments_of(HostMap::of(hosts, rank), 96'000, 4)) {
      EXPECT_EQ(segment.ranks.size(), 2u);
      carried[static_cast<std::size_t>(rank)] += segment.end - segment.begin;
    }
  }
  EXPECT_EQ(carried, (std::vector<std::int64_t>{32'000, 32'000, 32'000, 48'000, 48'000}));
}

TEST(TwoLevel, SegmentsAreTheSameOnAllRanksThatShareThem) {
  for (const auto& hosts : kLayouts) {
    for (std::int64_t count : {1, 16, 17, 1000, 65'537}) {
      // By begin: the ranks of the segment, and how many of them list it.
      std::map<std::int64_t, std::pair<std::vector<int>, int>> seen;
      std::int64_t covered = 0;
      for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
        for (const Segment& segment : segments_of(HostMap::of(hosts, rank), count, 4)) {
          auto& [ranks, times] = seen[segment.begin];
          if (times++ == 0) {
            ranks = segment.ranks;
            covered += segment.end - segment.begin;
          }
          EXPECT_EQ(ranks, segment.ranks);
          EXPECT_NE(std::find(ranks.begin(), ranks.end(), rank), ranks.end());
        }
      }
      EXPECT_EQ(covered, count);
      for (const auto& [begin, entry] : seen)
        EXPECT_EQ(entry.second, static_cast<int>(entry.first.size())) << begin;
    }
  }
}

TEST(TwoLevelTiming, ARankThatLeavesIsReportedAsLostByItsGroupRankWithinTwoSeconds) {
  // Rank 1 leaves at once; ranks 0 and 2 would share its host or its segment, rank 3 neither.
  expect_within(2s, [](SlowestRank& slowest) {
    std::atomic<int> good{0};
    on_hosts({"a", "a", "b", "b"}, [&](Rank rank) {
      if (rank.map.rank == 1) return rank.leave();
      std::vector<float> values(100'000, 1.0f);
      const auto start = Deadline::Clock::now();
      try {
        rank.engine.run(
            Collective::kAllReduce,
            {.input = values.data(), .output = values.data(), .count = 100'000, .timeout = 20s});
      } catch (const Error& error) {
        slowest.report_since(start);
        const bool right = error.code() == Errc::kPeerLost && error.context().peer == 1;
        if (!right) ADD_FAILURE() << "rank " << rank.map.rank << ": " << error.what();
        good += right ? 1 : 0;
      }
    });
    EXPECT_EQ(good.load(), 3);
  });
}

}  // namespace
}  // namespace weft::comm::internal
