// Real store processes, killed and stopped while clients work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "weft/base/testing/refusal.h"
#include "weft/store/testing/contract.h"
#include "weft/store/testing/store_processes.h"

namespace weft::store {
namespace processes_test {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;
using ::testing::HasSubstr;

constexpr auto kPatience = 20s;

Deadline patience() { return Deadline::in(kPatience); }

using Nodes = StoreNodes;

// One client for each node, which counts and sets keys without pause.
class Load {
 public:
  explicit Load(Nodes& nodes) : nodes_(nodes) {
    for (std::uint32_t node = 0; node < nodes.size(); ++node)
      workers_.emplace_back([this, node](const std::stop_token& stop) { work(node, stop); });
  }
  ~Load() { stop(); }

  void stop() {
    for (auto& worker : workers_) worker.request_stop();
    workers_.clear();
  }
  std::uint64_t done() const { return done_; }
  // The longest time between two answers of a client.
  Clock::duration longest_pause() const { return Clock::duration(longest_pause_.load()); }
  void forget_pauses() { longest_pause_ = 0; }

  // All that was acknowledged is there, once.
  void expect_all(Client& client) const {
    EXPECT_EQ(client.get("count", patience()).value().bytes, std::to_string(done_));
    EXPECT_EQ(client.list("key/", patience()).items.size(), done_);
  }

 private:
  void work(std::uint32_t node, const std::stop_token& stop) {
    Client& client = nodes_.client(node);
    auto last = Clock::now();
    for (std::uint64_t i = 0; !stop.stop_requested(); ++i) {
      client.add("count", 1, patience());
      client.set({"key/" + std::to_string(node) + "/" + std::to_string(i), "value"}, patience());
      ++done_;
      const auto now = Clock::now();
      Clock::rep pause = (now - last).count(), known = longest_pause_;
      while (pause > known && !longest_pause_.compare_exchange_weak(known, pause)) {
      }
      last = now;
      std::this_thread::sleep_for(1ms);
    }
  }

  Nodes& nodes_;
  std::atomic<std::uint64_t> done_ = 0;
  std::atomic<Clock::rep> longest_pause_ = 0;
  std::vector<std::jthread> workers_;
};

// Kills the leader so often, under load. The clients of the two other nodes and of the killed
// one, whose process is started again, go on within 2 s each time.
void kill_leaders(int times) {
  Nodes nodes(3);
  nodes.leader(1);
  Load load(nodes);
  for (int i = 0; i < times; ++i) {
    const std::uint32_t leader = nodes.leader(i % 3);
    load.forget_pauses();
    const std::uint64_t before = load.done();
    nodes.process(leader).kill();
    nodes.leader((leader + 1) % 3, leader);
    nodes.process(leader).start();
    while (load.done() < before + 30) std::this_thread::sleep_for(1ms);
    EXPECT_LT(load.longest_pause(), 2s) << "kill " << i;
  }
  load.stop();
  load.expect_all(nodes.client(0));
}

TEST(StoreProcessesTiming, GoOnWithinTwoSecondsWhenTheLeaderIsKilled) { kill_leaders(2); }

TEST(StoreProcessesSlowTiming, GoOnWithinTwoSecondsWhenTheLeaderIsKilledTwentyTimes) {
  kill_leaders(20);
}

TEST(StoreProcesses, ContinueWithAllDataWhenTheOnlyProcessIsKilled) {
  Nodes nodes(1);
  Load load(nodes);
  for (int i = 0; i < 5; ++i) {
    const std::uint64_t before = load.done();
    while (load.done() < before + 20) std::this_thread::sleep_for(1ms);
    nodes.process(0).kill();
    nodes.process(0).start();
  }
  load.stop();
  load.expect_all(nodes.client(0));
}

TEST(StoreProcesses, KeepTheContractOfAStoreOnOneNode) {
  Nodes nodes(1);
  expect_values(nodes.client(0));
  expect_swaps(nodes.client(0));
  expect_listings(nodes.client(0));
  expect_waits(nodes.client(0));
  expect_leases(nodes.client(0), 100ms);
}

TEST(StoreProcessesSlow, KeepTheContractOfAStoreOnThreeNodes) {
  Nodes nodes(3);
  const std::uint32_t follower = (nodes.leader(1) + 1) % 3;
  expect_values(nodes.client(follower));
  expect_swaps(nodes.client(follower));
  expect_listings(nodes.client(follower));
  expect_waits(nodes.client(follower));
  expect_leases(nodes.client(follower), 100ms);
}

TEST(StoreProcessesSlow, CarryTheLargestValueAndRefuseALargerOne) {
  Nodes nodes(3);
  const std::string value(kMaxValueBytes, 'x');
  nodes.client(1).set({"large", value}, patience());
  EXPECT_EQ(nodes.client(2).get("large", patience()).value().bytes, value);
  expect_refused(
      [&] {
        nodes.client(0).set({"larger", value + "x"}, patience());
      },
      Errc::kInvalidArgument, "8388608 bytes");
}

// A stopped process keeps its connections: they are half open, as after the loss of a host.
TEST(StoreProcessesTiming, ElectAnotherLeaderWithinTwoSecondsWhenTheLeaderIsStopped) {
  Nodes nodes(3);
  const std::uint32_t old = nodes.leader(1), other = (old + 1) % 3;
  nodes.client(old).set({"a", "old"}, patience());
  nodes.process(old).stop();
  const auto start = Clock::now();
  nodes.client(other).set({"a", "new"}, patience());
  EXPECT_LT(Clock::now() - start, 2s);
  nodes.process(old).go_on();
  EXPECT_EQ(nodes.client(old).get("a", patience()).value().bytes, "new");  // no stale read
}

TEST(StoreProcessesSlow, TakeBackANodeThatHasLostItsMemoryAsANewMember) {
  Nodes nodes(3);
  const std::uint32_t lost = nodes.leader(1), other = (lost + 1) % 3;
  nodes.client(other).set({"a", "1"}, patience());
  nodes.process(lost).lose();
  nodes.leader(other, lost);
  nodes.process(lost).start();
  nodes.leader(lost);
  EXPECT_EQ(nodes.client(lost).get("a", patience()).value().bytes, "1");
}

TEST(StoreProcessesSlow, OfTwoNodesTheFirstGoesOnAloneAndTheSecondDoesNot) {
  Nodes nodes(2);
  EXPECT_EQ(nodes.leader(1), 0u);
  nodes.process(1).kill();
  nodes.client(0).set({"a", "1"}, patience());
  nodes.process(1).start();
  EXPECT_EQ(nodes.client(1).get("a", patience()).value().bytes, "1");
  nodes.process(0).stop();
  EXPECT_THAT(refusal(
                  [&] {
                    nodes.client(1).set({"a", "2"}, Deadline::in(1500ms));
                  },
                  Errc::kTimeout),
              HasSubstr("a majority is needed"));
  nodes.process(0).go_on();
  nodes.client(1).set({"a", "3"}, patience());
  EXPECT_EQ(nodes.client(0).get("a", patience()).value().bytes, "3");
}

// Runs a second store process against the first one, and expects that it does not join.
void expect_stays_out(StoreProcess& founder, Client& client, StoreProcess::Options options) {
  options.program = WEFT_STORE_PROGRAM;
  options.node = 1;
  options.nodes = 2;
  options.seed = founder.address();
  StoreProcess stranger(std::move(options));
  Client asks(stranger.socket());
  std::string reason;
  for (const Deadline deadline = patience(); !deadline.passed();) {
    reason = refusal([&] { asks.set({"a", "1"}, Deadline::in(30ms)); }, Errc::kTimeout);
    if (reason.find("cannot join") != std::string::npos) break;
  }
  EXPECT_THAT(reason, testing::AllOf(HasSubstr("has not joined"), HasSubstr("cannot join")));
  EXPECT_THAT(client.status(patience()).members, testing::IsEmpty());
}

TEST(StoreProcesses, RefuseAnotherSecretAndAnotherJob) {
  StoreProcess founder({.program = WEFT_STORE_PROGRAM, .nodes = 2});
  Client client(founder.socket());
  testing::internal::CaptureStderr();
  expect_stays_out(founder, client, {.secret = std::string(32, 'x')});
  expect_stays_out(founder, client, {.job = "other"});
  testing::internal::GetCapturedStderr();
}

TEST(StoreProcesses, EndWithTheirLauncher) {
  StoreProcess process({.program = WEFT_STORE_PROGRAM});
  EXPECT_EQ(process.hang_up(), 0);
}

TEST(StoreProcesses, EndWithOneLineWhenTheirArgumentsAreWrong) {
  testing::internal::CaptureStderr();
  StoreProcess process({.program = WEFT_STORE_PROGRAM, .more = {"--nodes", "3"}});
  const int status = process.hang_up();
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "weft_store: InvalidArgument: --nodes is not an option\n");
}

TEST(StoreClient, SaysThatNobodyListens) {
  Client client("@weft-store-of-nobody");
  expect_refused([&] { client.get("a", Deadline::in(20ms)); }, Errc::kUnavailable,
                 "nobody listens");
  expect_refused([] { Client("" + std::string(200, 'x')); }, Errc::kInvalidArgument,
                 "not the name of a socket");
}

TEST(StoreClient, EndsAtItsDeadlineWhenTheStoreProcessIsStopped) {
  StoreProcess process({.program = WEFT_STORE_PROGRAM});
  Client client(process.socket());
  client.set({"a", "1"}, patience());
  process.stop();
  expect_refused([&] { client.get("a", Deadline::in(20ms)); }, Errc::kTimeout, "has been stopped");
  process.go_on();
  EXPECT_EQ(client.get("a", patience()).value().bytes, "1");
}

TEST(StoreClient, MakesItsOwnConnectionsInAChild) {
  StoreProcess process({.program = WEFT_STORE_PROGRAM});
  Client client(process.socket());
  client.add("n", 1, patience());
  const pid_t child = ::fork();
  if (child == 0) ::_exit(client.add("n", 1, patience()) == 2 ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(client.add("n", 1, patience()), 3);
}

}  // namespace processes_test
}  // namespace weft::store
