// Servers and workers as processes; servers are killed while the workers push.
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <thread>

#include "weft/base/random.h"
#include "weft/ps/client.h"
#include "weft/ps/server.h"
#include "weft/ps/testing/processes.h"

namespace weft::ps {
namespace processes_test {

using namespace std::chrono_literals;
using testing::Child;
using testing::ForkedStore;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kServers = 2, kWorkers = 2;

// What the workers report, in memory that all processes share.
struct Board {
  struct Worker {
    std::atomic<std::int64_t> issued, acknowledged, longest_us;
  };
  std::atomic<bool> stop;
  Worker workers[kWorkers];

  static Board& make() {
    void* const page =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    return *new (page) Board();
  }
};

Child fork_server(const std::string& store, std::uint32_t number,
                  std::chrono::milliseconds server_timeout) {
  return Child([=] {
    const auto directory = job_directory("test", store);
    ServerOptions options;
    options.directory = directory.get();
    options.server = number;
    options.servers = kServers;
    options.server_timeout = server_timeout;
    const Server server(options);
    while (!server.failure()) std::this_thread::sleep_for(10ms);
    throw Error(*server.failure());
  });
}

ClientOptions client_options(Directory& directory, std::optional<std::uint32_t> worker) {
  ClientOptions options;
  options.directory = &directory;
  options.servers = kServers;
  options.worker = worker;
  options.local = worker != 1;  // one worker uses TCP
  return options;
}

Options add_deltas() {
  Options options;
  options.rule.reset();
  options.staleness = kAsync;
  return options;
}

constexpr std::size_t kRows = 50;

// Rows of a table that only this worker pushes.
std::vector<std::uint64_t> keys_of(std::uint32_t worker) {
  std::vector<std::uint64_t> keys(kRows);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = 1000 * i + worker;
  return keys;
}

std::vector<TableSpec> tables() {
  return {{.name = "rows", .row_floats = 4, .rule = Add{}},
          {.name = "young", .row_floats = 4, .evict_after = 5}};
}

// Each worker adds 1 to its row of the matrix, which all shards have a part of, and to its rows of
// the table. It makes rows of the other table, which are evicted.
void work(const std::string& store, std::uint32_t worker, Board& board) {
  const auto directory = job_directory("test", store);
  Client client(client_options(*directory, worker));
  const std::vector<float> zeros(1000);
  client.define({{"row0", zeros}, {"row1", zeros}}, add_deltas(), tables());
  client.join();
  std::vector<std::uint64_t> keys = keys_of(worker), young(10);
  const std::vector<float> ones(4 * kRows, 1.0f);
  const std::string mine = "row" + std::to_string(worker);
  while (!board.stop) {
    const auto start = Clock::now();
    for (float& value : client.gradient(mine)) value = 1;
    board.workers[worker].issued += 1;
    const auto issued = static_cast<std::uint64_t>(board.workers[worker].issued);
    for (std::size_t i = 0; i < young.size(); ++i) young[i] = 20 * issued + 2 * i + worker;
    const Client::Ticket rows = client.push_rows("rows", keys, ones);
    const Client::Ticket more =
        client.push_rows("young", young, std::span(ones).first(4 * young.size()));
    client.wait(client.push({mine}));
    client.wait(rows);
    client.wait(more);
    board.workers[worker].acknowledged += 1;
    const auto us =
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
    board.workers[worker].longest_us = std::max<std::int64_t>(board.workers[worker].longest_us, us);
  }
  client.leave();
}

// Waits until each shard has so many servers.
void wait_for_members(Directory& directory, std::size_t count) {
  const Deadline deadline = Deadline::in(20s);
  for (;;) {
    std::size_t shards = 0;
    for (const auto& [shard, view] : directory.views(deadline))
      shards += view.members.size() == count;
    if (shards == kServers) return;
    if (deadline.passed()) throw Error(Errc::kTimeout, "the servers did not form their chains");
    std::this_thread::sleep_for(5ms);
  }
}

void expect_that_kills_lose_nothing(int kills, std::chrono::milliseconds server_timeout,
                                    std::chrono::milliseconds longest) {
  Board& board = Board::make();
  const ForkedStore store;
  std::vector<Child> servers, workers;
  for (std::uint32_t i = 0; i < kServers; ++i)
    servers.push_back(fork_server(store.name(), i, server_timeout));
  for (std::uint32_t i = 0; i < kWorkers; ++i)
    workers.emplace_back([&, i] { work(store.name(), i, board); });
  const auto directory = job_directory("test", store.name());
  Random random(1);
  for (int kill = 0; kill < kills; ++kill) {
    wait_for_members(*directory, 2);
    // Each worker makes a push in between, and has one under way.
    for (Board::Worker& worker : board.workers) {
      const std::int64_t before = worker.acknowledged;
      for (const Deadline soon = Deadline::in(longest); worker.acknowledged == before;) {
        ASSERT_FALSE(soon.passed()) << "a worker makes no progress";
        std::this_thread::sleep_for(1ms);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random.below(100)));
    const std::uint32_t victim = static_cast<std::uint32_t>(kill) % kServers;
    servers[victim].kill();
    wait_for_members(*directory, 1);
    servers[victim] = fork_server(store.name(), victim, server_timeout);
  }
  wait_for_members(*directory, 2);
  board.stop = true;
  for (const Deadline deadline = Deadline::in(20s); !deadline.passed();) {
    if (workers[0].has_ended() && workers[1].has_ended()) break;
    std::this_thread::sleep_for(5ms);
  }
  const std::vector<float> zeros(1000);
  Client reader(client_options(*directory, {}));
  reader.define({{"row0", zeros}, {"row1", zeros}}, add_deltas(), tables());
  reader.wait(reader.pull());
  for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
    const Board::Worker& one = board.workers[worker];
    EXPECT_EQ(one.issued, one.acknowledged);
    for (const float value : reader.value("row" + std::to_string(worker)))
      ASSERT_EQ(value, static_cast<float>(one.acknowledged)) << "worker " << worker;
    std::vector<float> rows(4 * kRows);
    reader.wait(reader.pull_rows("rows", keys_of(worker), rows));
    for (const float value : rows)
      ASSERT_EQ(value, static_cast<float>(one.acknowledged)) << "rows of worker " << worker;
    EXPECT_LT(one.longest_us, std::chrono::microseconds(longest).count());
    EXPECT_GT(one.acknowledged, 10 * kills);
  }
  EXPECT_GT(reader.stats().rows, 2 * kRows);
}

TEST(ServerProcesses, LoseNoAcknowledgedPushWhenTheyAreKilled) {
  expect_that_kills_lose_nothing(3, 300ms, 2s);
}

TEST(ServerProcessesSlow, LoseNoAcknowledgedPushInFiftyKills) {
  expect_that_kills_lose_nothing(50, ServerOptions().server_timeout, 2s);
}

// The workers of a step wait for one that is killed only until the servers notice it.
TEST(ServerProcesses, GoOnWithoutAKilledWorker) {
  const ForkedStore store;
  Child server = Child([&] {
    const auto directory = job_directory("test", store.name());
    ServerOptions options;
    options.directory = directory.get();
    options.worker_timeout = 200ms;
    const Server server(options);
    while (!server.failure()) std::this_thread::sleep_for(10ms);
  });
  const std::vector<float> zeros(10);
  Options sync;
  sync.rule.reset();
  Child worker([&] {
    const auto directory = job_directory("test", store.name());
    ClientOptions options = client_options(*directory, 1);
    options.servers = 1;
    Client client(options);
    client.define({{"w", zeros}}, sync);
    client.join();
    std::this_thread::sleep_for(60s);
  });
  const auto directory = job_directory("test", store.name());
  ClientOptions options = client_options(*directory, 0);
  options.servers = 1;
  Client client(options);
  client.define({{"w", zeros}}, sync);
  client.join();
  while (client.stats().workers < 2) std::this_thread::sleep_for(2ms);
  for (float& value : client.gradient("w")) value = 1;
  client.wait(client.push());
  const Client::Ticket pull = client.pull();
  EXPECT_THROW(client.wait(pull, Deadline::in(30ms)), Error);
  worker.kill();
  client.wait(pull, Deadline::in(5s));
  EXPECT_EQ(client.value("w")[3], 1);
}

}  // namespace processes_test
}  // namespace weft::ps
