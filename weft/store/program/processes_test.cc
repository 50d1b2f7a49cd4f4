// Real store processes, killed and stopped while clients work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "weft/base/testing/refusal.h"
#include "weft/store/testing/store_processes.h"

namespace weft::store {
namespace processes_test {

using namespace std::chrono_literals;
using Clock = Deadline::Clock;
using ::testing::HasSubstr;

constexpr auto kPatience = 20s;

Deadline patience() { return Deadline::in(kPatience); }

// The store processes of all nodes of a job.
class Nodes {
 public:
  explicit Nodes(std::uint32_t count) {
    for (std::uint32_t node = 0; node < count; ++node) {
      processes_.push_back(std::make_unique<StoreProcess>(
          StoreProcess::Options{.program = WEFT_STORE_PROGRAM,
                                .node = node,
                                .nodes = count,
                                .seed = node == 0 ? "" : processes_[0]->address()}));
      clients_.push_back(std::make_unique<Client>(processes_.back()->socket()));
    }
  }

  StoreProcess& process(std::uint32_t node) { return *processes_[node]; }
  Client& client(std::uint32_t node) { return *clients_[node]; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(processes_.size()); }

  // Waits until the node knows a leader that is not `other`, and that `voters` nodes decide.
  std::uint32_t leader(std::uint32_t asked, std::size_t voters,
                       std::optional<std::uint32_t> other = {}) {
    const Deadline deadline = patience();
    for (;;) {
      const StoreStatus status = client(asked).status(deadline);
      if (status.leader && status.leader != other && status.voters.size() == voters)
        return *status.leader;
      if (deadline.passed()) throw std::runtime_error("the store has no leader");
      std::this_thread::sleep_for(5ms);
    }
  }

 private:
  std::vector<std::unique_ptr<StoreProcess>> processes_;
  std::vector<std::unique_ptr<Client>> clients_;
};

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
  nodes.leader(1, 3);
  Load load(nodes);
  for (int i = 0; i < times; ++i) {
    const std::uint32_t leader = nodes.leader(i % 3, 3);
    load.forget_pauses();
    const std::uint64_t before = load.done();
    nodes.process(leader).kill();
    nodes.leader((leader + 1) % 3, 3, leader);
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

}  // namespace processes_test
}  // namespace weft::store
