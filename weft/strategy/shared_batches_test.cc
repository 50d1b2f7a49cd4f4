#include "weft/strategy/shared_batches.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/store/testing/store_processes.h"

namespace weft::strategy {
namespace shared_batches_test {

using namespace std::chrono_literals;

using Make = std::function<std::unique_ptr<SharedBatches>(const Group&, const WorkerRank&)>;

WorkerRank alone(const Group& group) { return {group.rank(), group.size(), true}; }

class SharedBatchesTest : public testing::Test {
 protected:
  // Ranks that share memory.
  static void on_one_host(int ranks, const std::function<void(const Group&, const Make&)>& fn) {
    comm::replicate(ranks, [&](const Group& group) {
      fn(group,
         [](const Group& all, const WorkerRank& place) { return make_shared_batches(all, place); });
    });
  }
  // Ranks over TCP, which share a store process.
  void on_several_hosts(int ranks, const std::function<void(const Group&, const Make&)>& fn,
                        int most_at_a_time = 4, std::chrono::milliseconds timeout = 60s) {
    const Make make = [&](const Group& all, const WorkerRank& place) {
      return make_shared_batches(all, place,
                                 {.most_at_a_time = most_at_a_time,
                                  .store = std::make_shared<store::Client>(process_.socket())});
    };
    comm::replicate_over_tcp(ranks, [&](const Group& group) { fn(group, make); },
                             {.timeout = timeout});
  }
  void on_both(int ranks, const std::function<void(const Group&, const Make&)>& fn) {
    {
      SCOPED_TRACE("one host");
      on_one_host(ranks, fn);
    }
    SCOPED_TRACE("several hosts");
    on_several_hosts(ranks, fn);
  }

  store::StoreProcess process_{{.program = WEFT_STORE_PROGRAM}};
};

TEST_F(SharedBatchesTest, GiveOutEachNumberOnceAndFewerToASlowWorker) {
  const int count = 60;
  std::mutex lock;
  std::vector<int> given, taken;
  on_both(4, [&](const Group& group, const Make& make) {
    const auto batches = make(group, alone(group));
    if (group.rank() == 0) {
      given.assign(count, 0);
      taken.assign(4, 0);
    }
    for (int epoch = 0; epoch < 2; ++epoch) {
      batches->begin(count);
      while (const auto number = batches->take()) {
        {
          const std::lock_guard guard(lock);
          ++given[static_cast<std::size_t>(*number)];
          ++taken[static_cast<std::size_t>(group.rank())];
        }
        std::this_thread::sleep_for(group.rank() == 3 ? 32ms : 4ms);
      }
      EXPECT_EQ(batches->take(), std::nullopt);
      EXPECT_EQ(batches->end(), count);
    }
    batches->meet();
    if (group.rank() != 0) return;
    EXPECT_EQ(given, std::vector<int>(count, 2));
    EXPECT_LT(taken[3] * 3, 0.6 * (taken[0] + taken[1] + taken[2]));
  });
}

TEST_F(SharedBatchesTest, EndAfterAWholeBatchWhenOneWorkerClosesThem) {
  on_both(3, [](const Group& group, const Make& make) {
    const auto batches = make(group, alone(group));
    batches->begin(30);
    std::int64_t taken = 0;
    if (group.rank() == 1) {
      for (int i = 0; i < 4; ++i) taken += batches->take().has_value() ? 1 : 0;
      batches->close();
      EXPECT_EQ(batches->end(), 6);
      batches->close();
      EXPECT_EQ(batches->end(), 6);
    }
    group.barrier();
    while (batches->take()) ++taken;
    batches->add({.batches = static_cast<double>(taken)});
    batches->meet();
    double all = 0;
    for (const auto& one : batches->done()) all += one.batches;
    EXPECT_EQ(all, static_cast<double>(batches->end()));
    batches->begin(2);
    EXPECT_EQ(batches->end(), 2);
  });
}

TEST_F(SharedBatchesTest, GiveAllRanksOfAWorkerTheSameNumbers) {
  const int count = 100;
  std::vector<std::vector<std::int64_t>> taken(4);
  on_both(4, [&](const Group& group, const Make& make) {
    const auto rank = static_cast<std::size_t>(group.rank());
    taken[rank].clear();
    const auto batches = make(group, {group.rank() / 2, 2, group.rank() % 2 == 0});
    const Group worker = group.subgroup({group.rank() / 2 * 2, group.rank() / 2 * 2 + 1}, "worker");
    for (int epoch = 0; epoch < 2; ++epoch) {
      batches->begin(count);
      while (const auto number = batches->take()) {
        taken[rank].push_back(*number);
        worker.barrier();
      }
    }
    group.barrier();
    if (group.rank() != 0) return;
    EXPECT_EQ(taken[0], taken[1]);
    EXPECT_EQ(taken[2], taken[3]);
    EXPECT_EQ(taken[0].size() + taken[2].size(), 2U * count);
  });
}

TEST_F(SharedBatchesTest, AddUpWhatEachRankHasDone) {
  on_both(3, [](const Group& group, const Make& make) {
    const auto batches = make(group, alone(group));
    for (int i = 0; i < 10; ++i)
      batches->add({.batches = 1, .loss = 0.5 * group.rank(), .memory_bytes = 7});
    batches->meet();
    const auto done = batches->done();
    ASSERT_EQ(done.size(), 3U);
    EXPECT_EQ(done[2].batches, 10);
    EXPECT_EQ(done[2].loss, 10);
    EXPECT_EQ(done[1].loss, 5);
    EXPECT_EQ(done[1].memory_bytes, 7);
    auto sum = done[0];
    sum += done[1];
    sum -= done[2];
    EXPECT_EQ(sum.batches, 10);
    EXPECT_EQ(sum.loss, -5);
  });
}

TEST_F(SharedBatchesTest, CountLossesInARowThatAreNotFinite) {
  on_both(2, [](const Group& group, const Make& make) {
    const auto batches = make(group, alone(group));
    if (group.rank() == 1) {
      EXPECT_EQ(batches->add_finite(false, 8), 1);
      EXPECT_EQ(batches->add_finite(false, 9), 2);
    }
    batches->meet();
    const auto found = batches->not_finite();
    EXPECT_EQ(found.batches, 2);
    EXPECT_EQ(found.first_step, 8);
    EXPECT_EQ(found.rank, 1);
    batches->meet();
    EXPECT_EQ(batches->add_finite(true, 10), 0);
    batches->meet();
    EXPECT_EQ(batches->not_finite().batches, 0);
  });
}

TEST_F(SharedBatchesTest, OnSeveralHostsAskTheStoreOnceForSeveralNumbers) {
  store::Client client(process_.socket());
  const auto changes = [&] { return client.list("batches/", Deadline::in(10s)).revision; };
  for (const int most : {1, 8}) {
    store::Revision before = 0, after = 0;
    on_several_hosts(
        2,
        [&](const Group& group, const Make& make) {
          const auto batches = make(group, alone(group));
          batches->begin(400);
          if (group.rank() == 0) before = changes();
          group.barrier();
          while (batches->take()) {
          }
          group.barrier();
          if (group.rank() == 0) after = changes();
        },
        most);
    if (most == 1) {
      EXPECT_GE(after - before, 400U);
    } else {
      EXPECT_LE(after - before, 100U);  // 336 / 8, and the last ones in fewer
    }
  }
}

TEST_F(SharedBatchesTest, OnSeveralHostsShowWhatOthersAreDoingWithoutAMeeting) {
  on_several_hosts(2, [](const Group& group, const Make& make) {
    const auto batches = make(group, alone(group));
    if (group.rank() == 0) {
      const Deadline deadline = Deadline::in(20s);
      while (batches->done()[1].batches < 2 && !deadline.passed()) std::this_thread::sleep_for(5ms);
      EXPECT_GE(batches->done()[1].batches, 2);
    } else {
      batches->add({.batches = 2});
      std::this_thread::sleep_for(250ms);
      batches->add({.batches = 1});
    }
    group.barrier();
  });
}

TEST_F(SharedBatchesTest, OnSeveralHostsEndWithPeerLostAtTheDeadlineWhereTheStoreIsGone) {
  on_several_hosts(
      2,
      [&](const Group& group, const Make& make) {
        const auto batches = make(group, alone(group));
        batches->begin(1000);
        EXPECT_EQ(batches->take().has_value(), true);
        group.barrier();
        if (group.rank() == 0) process_.kill();
        group.barrier();
        expect_refused(
            [&] {
              while (batches->take()) {
              }
            },
            Errc::kPeerLost, "the store of the job cannot be reached");
      },
      4, 1s);
  process_.start();
}

TEST(SharedBatches, AreNullOnSeveralHostsWithoutAStore) {
  ASSERT_EQ(std::getenv(store::kStoreVariable), nullptr);
  const auto meeting = c10::make_intrusive<c10d::HashStore>();
  comm::replicate(2, [&](const Group& threads) {
    const comm::BackendOptions options{.transport = comm::Transport::kTcp, .timeout = 60s};
    const Group group(comm::make_backend(meeting, threads.rank(), threads.size(), options), "tcp");
    EXPECT_EQ(make_shared_batches(group, alone(group)), nullptr);
  });
}

}  // namespace shared_batches_test
}  // namespace weft::strategy
