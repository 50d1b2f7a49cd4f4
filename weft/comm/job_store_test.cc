// The job's store as a c10d::Store, and groups that meet over it.
#include "weft/comm/internal/job_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "weft/base/testing/refusal.h"
#include "weft/comm/init.h"
#include "weft/comm/internal/rendezvous.h"
#include "weft/store/testing/store_processes.h"

namespace weft::comm {
namespace job_store_test {

using internal::JobStore;
using namespace std::chrono_literals;
using Bytes = std::vector<std::uint8_t>;

Bytes bytes(const std::string& text) { return {text.begin(), text.end()}; }

// A store process, and stores of ranks over it.
class JobStoreTest : public testing::Test {
 protected:
  c10::intrusive_ptr<c10d::Store> connect(std::chrono::milliseconds timeout = 20s) {
    return c10::make_intrusive<JobStore>(std::make_shared<store::Client>(process_.socket()),
                                         timeout);
  }

  store::StoreProcess process_{{.program = WEFT_STORE_PROGRAM}};
};

// The contract of c10d::Store, as PyTorch's test/cpp/c10d/TCPStoreTest.cpp and
// test/distributed/test_store.py check it for TCPStore.
TEST_F(JobStoreTest, SetsGetsAddsAppendsAndDeletesAsTCPStoreDoes) {
  const auto store = connect();
  store->set("key0", bytes("value0"));
  EXPECT_EQ(store->get("key0"), bytes("value0"));
  EXPECT_EQ(store->add("key3", 1), 1);
  EXPECT_EQ(store->add("key3", 3), 4);
  EXPECT_EQ(store->get("key3"), bytes("4"));
  store->append("key4", bytes("po"));
  store->append("key4", bytes("tato"));
  EXPECT_EQ(store->get("key4"), bytes("potato"));
  EXPECT_EQ(store->getNumKeys(), 3);
  EXPECT_TRUE(store->check({"key0", "key3"}));
  EXPECT_FALSE(store->check({"key0", "none"}));
  EXPECT_TRUE(store->deleteKey("key0"));
  EXPECT_FALSE(store->deleteKey("key0"));
  EXPECT_EQ(store->listKeys(), (std::vector<std::string>{"key3", "key4"}));
  store->multiSet({"foo", "bar"}, {bytes("po"), bytes("tato")});
  EXPECT_EQ(store->multiGet({"foo", "bar"}), (std::vector<Bytes>{bytes("po"), bytes("tato")}));
}

TEST_F(JobStoreTest, ComparesAndSetsAsTCPStoreDoes) {
  const auto store = connect();
  EXPECT_EQ(store->compareSet("cs", bytes("wrong"), bytes("new")), bytes("wrong"));
  EXPECT_FALSE(store->check({"cs"}));
  store->set("cs", bytes("old"));
  EXPECT_EQ(store->compareSet("cs", bytes("wrong"), bytes("new")), bytes("old"));
  EXPECT_EQ(store->compareSet("cs", bytes("old"), bytes("new")), bytes("new"));
  EXPECT_EQ(store->get("cs"), bytes("new"));
  EXPECT_EQ(store->compareSet("fresh", bytes(""), bytes("first")), bytes("first"));
  EXPECT_EQ(store->compareSet("fresh", bytes(""), bytes("second")), bytes("first"));
}

TEST_F(JobStoreTest, GetAndWaitReturnWhenTheKeyIsSetOrThrowAtTheTimeout) {
  const auto store = connect();
  std::jthread other([this] { connect()->set("late", bytes("there")); });
  EXPECT_EQ(store->get("late"), bytes("there"));
  store->wait({"late"}, 1s);
  EXPECT_THROW(store->wait({"late", "never"}, 20ms), c10::DistStoreError);
  const auto impatient = connect(20ms);
  EXPECT_THROW(impatient->get("never"), c10::DistStoreError);
}

TEST_F(JobStoreTest, CarriesAGroupThroughItsFormationWhileItsProcessIsReplaced) {
  std::vector<std::jthread> ranks;
  std::atomic<int> sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const Group group = form_group(connect(), rank, 3, {.timeout = 20s});
      at::Tensor tensor = at::full({1}, rank + 1.0);
      group.all_reduce(tensor);
      sum += tensor.item<int>();
    });
  }
  process_.kill();
  process_.start();
  ranks.clear();
  EXPECT_EQ(sum, 3 * 6);
}

TEST_F(JobStoreTest, LetsAGroupFormAgainWithoutARankThatWasLost) {
  std::vector<std::jthread> ranks;
  std::atomic<int> sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      const Group group = form_group(connect(), rank, 3, {.timeout = 20s});
      if (rank == 1) return connect()->append(internal::kGoneKey, bytes("1 "));  // as a launcher
      const Group next = group.regroup({.wait = 20s, .timeout = 20s});
      at::Tensor tensor = at::full({1}, rank + 1.0);
      next.all_reduce(tensor);
      sum += tensor.item<int>();
    });
  }
  ranks.clear();
  EXPECT_EQ(sum, 2 * (1 + 3));
}

// Else a job with many recoveries would fill it.
TEST_F(JobStoreTest, KeepsThreeKeysOfEachGroupThatLaterOnesFollow) {
  constexpr int kGroups = 6;
  std::vector<std::int64_t> keys(kGroups);
  std::barrier all(2);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      std::vector<Group> groups = {form_group(connect(), rank, 2, {.timeout = 20s})};
      for (std::int64_t& count : keys) {
        Group next = groups.back().regroup({.wait = 20s, .timeout = 20s});
        EXPECT_EQ(next.size(), 2);
        groups.push_back(std::move(next));
        all.arrive_and_wait();
        if (rank == 0) count = connect()->getNumKeys();
        all.arrive_and_wait();
      }
    });
  }
  ranks.clear();
  EXPECT_LE(keys[5] - keys[3], 2 * 3) << keys[3] << " keys before";
}

TEST_F(JobStoreTest, SaysThatItIsFull) {
  const auto store = connect();
  const Bytes large(store::kMaxValueBytes, 'x');
  for (std::size_t size = large.size(); size < store::kMaxStoreBytes; size += large.size())
    store->set("key" + std::to_string(size), large);
  expect_refused([&] { store->set("one more", large); }, Errc::kUnavailable, "the store is full");
}

TEST_F(JobStoreTest, IsUsedByInitWhereTheEnvironmentNamesItsSocket) {
  ::setenv(store::kStoreVariable, process_.socket().c_str(), 1);
  std::vector<std::jthread> ranks;
  std::atomic<int> sum = 0;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Identity identity;
      identity.rank = identity.local_rank = rank;
      identity.world = identity.local_world = 2;
      identity.master_addr = "127.0.0.1";  // where no store listens
      identity.master_port = 1;
      identity.run_id = "test";
      const Group group = init(identity, {.timeout = 20s, .shared_allocator = false});
      at::Tensor tensor = at::full({1}, rank + 1.0);
      group.all_reduce(tensor);
      sum += tensor.item<int>();
    });
  }
  ranks.clear();
  ::unsetenv(store::kStoreVariable);
  EXPECT_EQ(sum, 2 * 3);
}

}  // namespace job_store_test
}  // namespace weft::comm
