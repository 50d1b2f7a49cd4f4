// Servers and clients of one process over real sockets: local ones with shared memory, and TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <thread>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/net/stream/local_socket.h"
#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/ps/testing/cluster.h"

namespace weft::ps {
namespace server_test {

using namespace std::chrono_literals;
using testing::Cluster;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Options options_with(std::optional<optim::UpdateRule> rule, int staleness) {
  Options options;
  options.rule = std::move(rule);
  options.staleness = staleness;
  return options;
}

const std::vector<float> kWeight{1, 2, 3, 4, 5}, kBias{-1, 1};

std::vector<Tensor> tensors() { return {{"weight", kWeight}, {"bias", kBias}}; }

struct Case {
  bool local = true;
  std::uint32_t servers = 1;
  std::string push = "none", pull = "none";
  float apart = 2;  // of the workers' targets from 4
  bool deltas = false;
};

class Transports : public ::testing::TestWithParam<Case> {};

// Two workers with gradients w - target: synchronous descent to the mean of the targets.
TEST_P(Transports, TrainSynchronously) {
  const Case& given = GetParam();
  Cluster cluster(given.servers);
  Options options = options_with(kernels::Sgd{.lr = 0.25}, kSync);
  options.push_codec = given.push;
  options.pull_codec = given.pull;
  options.pull_deltas = given.deltas;
  constexpr int kSteps = 40;
  const auto train = [&](std::uint32_t worker) {
    Client client(cluster.client(worker, given.local));
    client.define(tensors(), options);
    client.join();
    // Both begin together, so that both make each step.
    while (client.stats().workers < 2) std::this_thread::sleep_for(1ms);
    for (int step = 0; step < kSteps; ++step) {
      client.wait(client.pull());
      for (const std::string name : {"weight", "bias"}) {
        const auto value = client.value(name);
        const auto gradient = client.gradient(name);
        for (std::size_t i = 0; i < value.size(); ++i)
          gradient[i] = value[i] - 4 + (worker == 0 ? given.apart : -given.apart);
      }
      client.wait(client.push());
    }
    client.wait(client.pull());
    EXPECT_EQ(client.clock(), kSteps);
    client.leave();
  };
  std::jthread other([&] { train(1); });
  train(0);
  other.join();
  Client reader(cluster.client({}, given.local));
  reader.define(tensors(), options);
  reader.wait(reader.pull());
  const double shrink = std::pow(0.75, kSteps);
  const double near = given.push == "none" && given.pull == "none" ? 1e-5 : 0.05;
  for (std::size_t i = 0; i < kWeight.size(); ++i)
    EXPECT_NEAR(reader.value("weight")[i], 4 + (kWeight[i] - 4) * shrink, near);
  EXPECT_EQ(reader.stats().updates, static_cast<std::uint64_t>(kSteps));
}

INSTANTIATE_TEST_SUITE_P(All, Transports,
                         ::testing::Values(Case{true, 1}, Case{false, 1}, Case{true, 3},
                                           Case{false, 2}, Case{true, 2, "int8:64", "bf16"},
                                           Case{false, 2, "topk:0.5", "f16", 0},
                                           Case{true, 2, "none", "none", 2, true},
                                           Case{false, 2, "none", "int8:64", 2, true},
                                           Case{true, 1, "none", "topk:0.5", 0, true}),
                         [](const auto& info) {
                           return std::string(info.param.local ? "Local" : "Tcp") +
                                  std::to_string(info.index);
                         });

TEST(Client, HasSeveralPushesOutstandingAndPullsWhatItPushed) {
  for (const bool local : {true, false}) {
    Cluster cluster(2);
    ClientOptions given = cluster.client(0, local);
    given.pipeline = 3;
    Client client(given);
    client.define(tensors(), options_with(std::nullopt, kAsync));
    client.join();
    for (int i = 0; i < 20; ++i) {
      for (float& value : client.gradient("weight")) value = 1;
      for (float& value : client.gradient("bias")) value = 2;
      client.push();
    }
    for (float& value : client.gradient("bias")) value = 0.5;
    client.push({"bias"});
    client.wait(client.pull());
    EXPECT_THAT(client.value("weight"), ElementsAre(21, 22, 23, 24, 25));
    EXPECT_THAT(client.value("bias"), ElementsAre(39.5, 41.5));
    // Only one tensor is pulled; the other keeps its values.
    for (float& value : client.gradient("weight")) value = 1;
    client.push({"weight"});
    client.wait(client.pull({"bias"}));
    EXPECT_THAT(client.value("weight"), ElementsAre(21, 22, 23, 24, 25));
    client.wait(client.pull({"weight"}));
    EXPECT_THAT(client.value("weight"), ElementsAre(22, 23, 24, 25, 26));
  }
}

TEST(Client, MayDefineAgainAfterAListThatWasRefused) {
  Cluster cluster(2);
  Client client(cluster.client(0));
  const Options options = options_with(std::nullopt, kAsync);
  expect_refused(
      [&] {
        client.define({{"weight", kWeight}, {"weight", kBias}}, options);
      },
      Errc::kInvalidArgument, "tensor weight is defined twice");
  expect_refused([&] { client.pull(); }, Errc::kInvalidArgument, "call define() first");
  client.define(tensors(), options);
  client.join();
  client.wait(client.pull());
  EXPECT_THAT(client.value("weight"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(client.value("bias"), ElementsAre(-1, 1));
}

// Seven elements are pushed and pulled.
TEST(Client, CountsWhatItMoves) {
  for (const bool local : {true, false}) {
    Cluster cluster(1);
    Client client(cluster.client(0, local));
    client.define(tensors(), options_with(std::nullopt, kAsync));
    client.join();
    for (const char* tensor : {"weight", "bias"})
      for (float& value : client.gradient(tensor)) value = 1;
    const Moved before = client.moved();
    client.wait(client.push());
    client.wait(client.pull());
    const Moved after = client.moved();
    EXPECT_EQ(after.shared_bytes - before.shared_bytes, local ? 56U : 0U);
    EXPECT_EQ(after.message_bytes - before.message_bytes, local ? 0U : 56U);
  }
}

TEST(Client, NamesWhatIsWrong) {
  Cluster cluster(2);
  Client client(cluster.client(3));
  const Options options = options_with(kernels::Sgd{.lr = 1}, kAsync);
  expect_refused([&] { client.join(); }, Errc::kInvalidArgument, "call define() first");
  client.define(tensors(), options);
  expect_refused([&] { client.wait(client.push()); }, Errc::kInvalidArgument,
                 "worker 3 has not joined");
  client.join();
  expect_refused([&] { client.gradient("wieght"); }, Errc::kInvalidArgument, "no tensor wieght");
  client.gradient("weight")[2] = std::numeric_limits<float>::quiet_NaN();
  expect_refused([&] { client.push(); }, Errc::kInvalidArgument,
                 "worker 3 pushes NaN for weight[2]");
  client.wait(client.pull());
  EXPECT_THAT(client.value("weight"), ElementsAre(1, 2, 3, 4, 5));

  Client other(cluster.client(4));
  const std::vector<float> longer(6);
  expect_refused(
      [&] {
        other.define({{"weight", longer}, {"bias", kBias}}, options);
      },
      Errc::kInvalidArgument, "differs from that of the first one");
  Client third(cluster.client(5));
  expect_refused([&] { third.define(tensors(), options_with(kernels::Sgd{.lr = 2}, kAsync)); },
                 Errc::kInvalidArgument, "options of this worker differ");
  Client reader(cluster.client({}));
  reader.define(tensors(), options);
  expect_refused([&] { reader.push(); }, Errc::kInvalidArgument, "only pulls");
}

TEST(Client, SavesAndLoadsTheStateOfTheServers) {
  const Options options = options_with(kernels::Adam{.lr = 0.1}, kAsync);
  const auto steps = [&](Client& client, int count) {
    for (int i = 0; i < count; ++i) {
      for (float& value : client.gradient("weight")) value = static_cast<float>(i) - 1;
      for (float& value : client.gradient("bias")) value = 2;
      client.wait(client.push());
    }
    client.wait(client.pull());
    return std::vector<float>(client.value("weight").begin(), client.value("weight").end());
  };
  Cluster first(2), second(2), third(3);
  Client before(first.client(0));
  before.define(tensors(), options);
  before.join();
  steps(before, 3);
  const std::string saved = before.save();
  const std::vector<float> expected = steps(before, 3);

  Client after(second.client(0));
  after.define(tensors(), options);
  after.load(saved);
  after.join();
  EXPECT_EQ(steps(after, 3), expected);
  expect_refused([&] { after.load(saved); }, Errc::kInvalidArgument, "before the first one joins");
  Client other(third.client(0));
  other.define(tensors(), options);
  expect_refused([&] { other.load(saved); }, Errc::kInvalidArgument, "saved by 2 servers, not 3");
  expect_refused([&] { other.load(saved.substr(0, 40)); }, Errc::kInvalidArgument, "");
}

TEST(Client, WaitsForItsPullOfDifferencesBeforeItLoads) {
  Cluster cluster(1);
  Options options = options_with(std::nullopt, kSync);
  options.pull_deltas = true;
  ClientOptions short_of_time = cluster.client(0);
  short_of_time.timeout = 300ms;
  Client fast(short_of_time), slow(cluster.client(1));
  for (Client* const client : {&fast, &slow}) client->define(tensors(), options);
  const std::string saved = fast.save();
  for (Client* const client : {&fast, &slow}) client->join();
  fast.wait(fast.push());
  const Client::Ticket pull = fast.pull();
  expect_refused([&] { fast.load(saved); }, Errc::kTimeout, "it may wait for a slower worker");
  slow.wait(slow.push());
  fast.wait(pull);
  fast.wait(fast.push());
}

// The answers to calls that have ended come together with that to the last one.
TEST(Client, DoesNotTakeALateAnswerForThatOfALaterCall) {
  MemoryDirectory directory;
  ClientOptions options;
  options.directory = &directory;
  options.timeout = 30ms;
  Client early(options);
  for (int call = 0; call < 2; ++call)
    expect_refused([&] { early.stats(); }, Errc::kTimeout, "did not answer");
  ServerOptions serving;
  serving.directory = &directory;
  const Server server(serving);
  options.timeout = 20s;
  Client other(options);
  other.define(tensors(), options_with(std::nullopt, kAsync));
  const auto known = other.stats().memory_bytes;
  ASSERT_GT(known, 0u);
  std::uint64_t seen = 0;
  for (const auto end = Deadline::in(10s); seen == 0 && !end.passed();) {
    try {
      seen = early.stats().memory_bytes;
    } catch (const Error&) {
      // The machine is busy.
    }
  }
  EXPECT_EQ(seen, known);
}

TEST(Client, IsToldThatAServerIsFull) {
  ServerOptions small;
  small.memory_mb = 1;
  Cluster cluster(1, small);
  const std::vector<float> half(100'000), whole(250'001);
  Client large(cluster.client(0));
  expect_refused(
      [&] {
        large.define({{"w", whole}}, options_with(std::nullopt, kAsync));
      },
      Errc::kUnavailable, "is full");
  Client client(cluster.client(0));
  client.define({{"w", half}}, options_with(std::nullopt, kAsync));
  client.join();
  for (float& value : client.gradient("w")) value = 1;
  client.wait(client.push());
  client.wait(client.pull());
  EXPECT_THAT(client.value("w"), Each(1));
}

TEST(Client, GoesOnWithoutAWorkerThatIsGone) {
  ServerOptions quick;
  quick.worker_timeout = 150ms;
  Cluster cluster(2, quick);
  const Options options = options_with(std::nullopt, 1);
  Client fast(cluster.client(0));
  fast.define(tensors(), options);
  fast.join();
  const auto step = [&] {
    for (float& value : fast.gradient("weight")) value = 1;
    for (float& value : fast.gradient("bias")) value = 1;
    fast.wait(fast.push());
  };
  Client::Ticket outstanding = 0;
  {
    Client slow(cluster.client(1));
    slow.define(tensors(), options);
    slow.join();
    step();
    fast.wait(fast.pull());
    step();
    outstanding = fast.pull();
    expect_refused([&] { fast.wait(outstanding, Deadline::in(50ms)); }, Errc::kTimeout,
                   "it may wait for a slower worker");
    EXPECT_FALSE(fast.is_done(outstanding));
  }
  // The other worker's connections have ended, without a leave(). The same pull is answered now.
  fast.wait(outstanding);
  while (fast.stats().workers > 1) std::this_thread::sleep_for(5ms);
  for (int i = 0; i < 5; ++i) step();
}

TEST(Server, IsReplacedByItsBackup) {
  for (const bool local : {true, false}) {
    ServerOptions quick;
    quick.server_timeout = 200ms;
    Cluster cluster(2, quick);
    cluster.wait_for_backups();
    Client client(cluster.client(0, local));
    client.define(tensors(), options_with(std::nullopt, kAsync));
    client.join();
    for (int i = 0; i < 10; ++i) {
      for (float& value : client.gradient("weight")) value = 1;
      for (float& value : client.gradient("bias")) value = 1;
      client.push();
      if (i == 4) cluster.servers[0].reset();
    }
    client.wait(client.pull());
    EXPECT_THAT(client.value("weight"), ElementsAre(11, 12, 13, 14, 15));
    EXPECT_THAT(client.value("bias"), ElementsAre(9, 11));
    EXPECT_EQ(cluster.directory.views(Deadline::in(1s)).at(0).members[0].server, 1u);
  }
}

// All elements are in the last shard, so the other servers get no request while the client waits
// for the backup. They must not take the worker as lost.
TEST(ServerTiming, KeepsAWorkerThatWaitsForAnotherServer) {
  ServerOptions quick;
  quick.worker_timeout = 150ms;
  quick.server_timeout = 500ms;
  Cluster cluster(3, quick);
  cluster.wait_for_backups();
  Client client(cluster.client(0));
  client.define(tensors(), options_with(std::nullopt, kAsync));
  client.join();
  cluster.servers[2].reset();
  client.wait(client.pull());
  for (const char* tensor : {"weight", "bias"})
    for (float& value : client.gradient(tensor)) value = 1;
  client.wait(client.push());
  client.wait(client.pull());
  EXPECT_THAT(client.value("weight"), ElementsAre(2, 3, 4, 5, 6));
}

// Runs out of memory or stalls when it is told to.
class FaultyDirectory final : public Directory {
 public:
  std::map<std::uint32_t, View> views(Deadline deadline) override {
    if (fails) throw std::bad_alloc();
    const std::shared_lock open(gate);
    ++calls;
    return inner_.views(deadline);
  }
  bool replace(std::uint32_t shard, const View& next, Deadline deadline) override {
    return inner_.replace(shard, next, deadline);
  }
  std::map<std::uint32_t, ServerAddress> servers(Deadline deadline) override {
    return inner_.servers(deadline);
  }
  void announce(std::uint32_t server, const ServerAddress& address, Deadline deadline) override {
    inner_.announce(server, address, deadline);
  }
  std::atomic<bool> fails{false};
  std::atomic<int> calls{0};
  std::shared_mutex gate;  // who locks it stalls views()

 private:
  MemoryDirectory inner_;
};

TEST(Server, ThatHasFailedKeepsNoClientWaiting) {
  FaultyDirectory directory;
  ServerOptions serving;
  serving.directory = &directory;
  const Server server(serving);
  const UniqueFd client = net::internal::connect_locally(server.address().local);
  ASSERT_TRUE(client);
  directory.fails = true;
  pollfd closed{client.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&closed, 1, 3000), 1);
  EXPECT_FALSE(net::internal::connect_locally(server.address().local));
  ASSERT_TRUE(server.failure());
  EXPECT_EQ(server.failure()->code(), Errc::kUnavailable);
}

// Both servers stall for longer than a server may be silent.
TEST(ServerTiming, DoesNotTakeItsOwnStallForTheSilenceOfAnother) {
  FaultyDirectory directory;
  ServerOptions serving;
  serving.directory = &directory;
  serving.servers = 2;
  serving.server_timeout = 200ms;
  const Server first(serving);
  serving.server = 1;
  const Server second(serving);
  const Deadline deadline = Deadline::in(10s);
  while (!first.is_replicated() || !second.is_replicated()) {
    ASSERT_FALSE(deadline.passed());
    std::this_thread::sleep_for(5ms);
  }
  const auto before = directory.views(deadline);
  {
    const std::lock_guard closed(directory.gate);
    std::this_thread::sleep_for(400ms);
  }
  // Each server looks at the views ten times.
  for (const int calls = directory.calls; directory.calls < calls + 20;) {
    ASSERT_FALSE(deadline.passed());
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_TRUE(directory.views(deadline) == before);
}

TEST(Server, RefusesAClientWithAnotherSecret) {
  ServerOptions with_secret;
  with_secret.secret.emplace();
  with_secret.secret->fill(std::byte{7});
  Cluster cluster(1, with_secret);
  ClientOptions wrong = cluster.client(0, false);
  wrong.secret.emplace();
  wrong.timeout = 300ms;
  Client client(wrong);
  expect_refused([&] { client.define(tensors(), {}); }, Errc::kTimeout, "secret");
  ClientOptions right = cluster.client(0, false);
  right.secret = with_secret.secret;
  Client(right).define(tensors(), {});
}

TEST(FolderDirectory, IsSharedByItsUsersAndReplacesOneViewAfterTheOther) {
  const TempDir folder;
  auto one = folder_directory(folder / "ps"), other = folder_directory(folder / "ps");
  const Deadline deadline = Deadline::in(10s);
  EXPECT_TRUE(one->views(deadline).empty());
  const View first{1, {{0, 7}}, {}}, second{2, {{0, 7}}, Member{1, 8}};
  EXPECT_FALSE(one->replace(3, second, deadline));
  EXPECT_TRUE(one->replace(3, first, deadline));
  EXPECT_FALSE(other->replace(3, first, deadline));
  EXPECT_TRUE(other->replace(3, second, deadline));
  other->announce(1, {"@local", "host:1"}, deadline);
  EXPECT_EQ(one->views(deadline).at(3), second);
  EXPECT_EQ(one->servers(deadline).at(1).tcp, "host:1");
  // Of many that want the next view, one gets it.
  std::atomic<int> done = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const auto mine = folder_directory(folder / "ps");
        for (std::uint64_t number = 3; number < 23; ++number)
          done += mine->replace(3, {number, {{static_cast<std::uint32_t>(i), 1}}, {}}, deadline);
      });
    }
  }
  const std::uint64_t last = one->views(deadline).at(3).number;
  EXPECT_EQ(static_cast<std::uint64_t>(done), last - 2);
  one.reset();
  EXPECT_EQ(::access((folder / "ps").c_str(), F_OK), 0);
  other.reset();
  EXPECT_NE(::access((folder / "ps").c_str(), F_OK), 0);
}

TEST(Server, RefusesBadOptions) {
  MemoryDirectory directory;
  const auto bad = [&](const std::function<void(ServerOptions&)>& change) {
    ServerOptions options;
    options.directory = &directory;
    change(options);
    return refusal([&] { Server server(options); });
  };
  EXPECT_THAT(bad([](ServerOptions& o) { o.directory = nullptr; }), HasSubstr("directory"));
  EXPECT_THAT(bad([](ServerOptions& o) { o.server = 1; }), HasSubstr("server 1 of 1"));
  EXPECT_THAT(bad([](ServerOptions& o) { o.memory_mb = 0; }), HasSubstr("memory_mb is 0"));
  EXPECT_THAT(bad([](ServerOptions& o) { o.worker_timeout = std::chrono::milliseconds::max(); }),
              HasSubstr("from 100 ms to a year"));
  EXPECT_THAT(bad([](ServerOptions& o) { o.server_timeout = 99ms; }),
              HasSubstr("from 100 ms to a year"));
  EXPECT_THAT(bad([](ServerOptions& o) { o.interface = "0.0.0.0"; }), HasSubstr("secret"));
}

}  // namespace server_test
}  // namespace weft::ps
