// Ranks of one attempt among the keys of earlier ones.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "weft/base/error.h"
#include "weft/comm/backend.h"
#include "weft/comm/init.h"
#include "weft/comm/testing/processes.h"

namespace weft::comm {
namespace attempt_test {

using namespace std::chrono_literals;

// The numbers of three ranks. `before_rank_0` runs when the others may have begun.
template <class Body>
std::vector<int> agree(c10d::Store& store, const Body& before_rank_0) {
  std::vector<int> numbers(3);
  std::vector<std::thread> threads;
  for (int rank = 1; rank < 3; ++rank) {
    threads.emplace_back([&numbers, &store, rank] {
      numbers[static_cast<std::size_t>(rank)] = agree_on_attempt(store, rank, 3, 60s);
    });
  }
  before_rank_0();
  numbers[0] = agree_on_attempt(store, 0, 3, 60s);
  for (std::thread& thread : threads) thread.join();
  return numbers;
}

TEST(Attempt, RanksThatBeginBeforeRank0DoNotTakeTheNumberOfAnEarlierAttempt) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(agree(*store, [] {}), (std::vector<int>{1, 1, 1}));
  const std::string key = "attempt/1/came/2", earlier = store->get_to_str(key);
  const auto rank_2_has_begun = [&] {
    while (store->get_to_str(key) == earlier) std::this_thread::yield();
  };
  EXPECT_EQ(agree(*store, rank_2_has_begun), (std::vector<int>{2, 2, 2}));
}

TEST(Attempt, FollowsAnAttemptInWhichARankDidNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  try {
    agree_on_attempt(*store, 0, 3, 10ms);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kTimeout);
    EXPECT_EQ(error.context().peer, 1);
    EXPECT_THAT(error.message(), testing::HasSubstr("rank 1 did not join within 10 ms"));
  }
  EXPECT_EQ(agree(*store, [] {}), (std::vector<int>{2, 2, 2}));
}

// Two attempts of a job of two nodes. torchrun has restarted the second node only.
TEST(Attempt, RanksWhoseRestartsTorchrunHasCountedSeparatelyMeet) {
  Processes processes(4, [](const Me& me) {
    ::setenv("TORCHELASTIC_RUN_ID", "job", 1);
    ::unsetenv("WEFT_LAUNCHER_PID");
    const bool is_second = me.id >= 2;
    if (is_second) me.store->wait({"ended0", "ended1"});
    Identity identity;
    identity.rank = me.id % 2;
    identity.world = identity.local_world = 2;
    identity.master_port = me.port;
    identity.store_is_hosted_elsewhere = true;
    identity.restart_count = is_second && identity.rank == 1 ? 1 : 0;
    InitOptions options;
    options.timeout = 20s;
    at::Tensor t = at::ones({3});
    const Group group = init(identity, options);
    group.all_reduce(t);
    group.barrier();
    me.store->set("ended" + std::to_string(me.id), "yes");
    return at::equal(t, at::full({3}, 2.0F)) ? 0 : 1;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, 0, 0}));
}

}  // namespace attempt_test
}  // namespace weft::comm
