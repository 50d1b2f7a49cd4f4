// Embedding tables through servers and clients of one process, over shared memory and TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "weft/base/file.h"
#include "weft/base/random.h"
#include "weft/base/testing/refusal.h"
#include "weft/ps/client.h"
#include "weft/ps/table/testing/model_table.h"
#include "weft/ps/testing/cluster.h"

namespace weft::ps {
namespace rows_test {

using namespace std::chrono_literals;
using testing::Cluster;
using ::testing::Each;
using Floats = std::vector<float>;
using Keys = std::vector<std::uint64_t>;

Options mode(int staleness) {
  Options options;
  options.staleness = staleness;
  return options;
}

TableOptions options_of(const TableSpec& table) {
  return {.row_floats = table.row_floats,
          .rule = table.rule,
          .initial_range = table.initial_range,
          .seed = table.seed};
}

struct Case {
  bool local = true;
  std::uint32_t servers = 1;
  std::int64_t floats = 3;
  std::size_t keys = 500;
  std::string push = "none", pull = "none";
  float near = 0;
};

class TableTransports : public ::testing::TestWithParam<Case> {};

// Random pushes and pulls against a table as a map.
TEST_P(TableTransports, DoWhatAMapDoes) {
  const Case& given = GetParam();
  Cluster cluster(given.servers);
  Client client(cluster.client(0, given.local));
  // Adagrad makes much of a sum that is nearly 0 instead of 0.
  const RowRule rule =
      given.near > 0 ? RowRule(kernels::Sgd{.lr = 0.25}) : RowRule(Adagrad{.rule = {.lr = 0.25}});
  const TableSpec table{.name = "words",
                        .row_floats = given.floats,
                        .rule = rule,
                        .initial_range = 0.25f,
                        .push_codec = given.push,
                        .pull_codec = given.pull};
  client.define({}, mode(kAsync), {table});
  client.join();
  ModelTable model(options_of(table));
  Random random(1);
  // More than 4 MiB, without repeated keys; or less, with them.
  const bool is_large = given.floats > 1000;
  for (int step = 0; step < (is_large ? 2 : 5); ++step) {
    Keys keys(is_large ? given.keys : 1 + random.below(given.keys));
    for (auto& key : keys) key = is_large ? random.next_u64() : random.below(given.keys) << 20;
    const auto width = static_cast<std::size_t>(given.floats);
    const Floats gradients = some_gradients(random, keys.size() * width);
    const Client::Ticket pushed = client.push_rows("words", keys, gradients);
    model.push(keys, gradients);
    keys.push_back(9);  // is never pushed
    Floats rows(keys.size() * width);
    client.wait(client.pull_rows("words", keys, rows));
    client.wait(pushed);
    const Floats expected = model.read(keys);
    for (std::size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(rows[i], expected[i], given.near);
    client.wait(client.push());
  }
  EXPECT_EQ(client.stats().rows, model.rows().size());
}

INSTANTIATE_TEST_SUITE_P(
    All, TableTransports,
    ::testing::Values(Case{}, Case{false}, Case{true, 3}, Case{false, 2},
                      // Several requests of 4 MiB, more than are outstanding together.
                      Case{true, 2, 2048, 2200}, Case{false, 1, 2048, 1100},
                      Case{true, 2, 8, 500, "bf16", "f16", 0.02f},
                      Case{false, 2, 8, 500, "int8:8,stochastic", "bf16", 0.05f}),
    [](const auto& info) {
      return std::string(info.param.local ? "Local" : "Tcp") + std::to_string(info.index);
    });

TEST(Tables, TrainSynchronouslyAsOneWorkerDoes) {
  Cluster cluster(2);
  const TableSpec table{
      .name = "t", .row_floats = 1, .rule = kernels::Sgd{.lr = 0.25}, .initial_range = 1};
  constexpr int kSteps = 20;
  const Keys keys{1, 2, 3, 4};
  // Gradients w - target of two workers: descent to the mean of the targets.
  const auto train = [&](std::uint32_t worker) {
    Client client(cluster.client(worker));
    client.define({}, mode(kSync), {table});
    client.join();
    while (client.stats().workers < 2) std::this_thread::sleep_for(1ms);
    Floats rows(keys.size());
    for (int step = 0; step < kSteps; ++step) {
      client.wait(client.pull_rows("t", keys, rows));
      for (float& value : rows) value -= worker == 0 ? 6 : 2;
      client.push_rows("t", keys, rows);
      client.wait(client.push());
    }
    client.wait(client.pull_rows("t", keys, rows));
    ModelTable model(options_of(table));
    const Floats first = model.read(keys);
    for (std::size_t i = 0; i < keys.size(); ++i)
      EXPECT_NEAR(rows[i], 4 + (first[i] - 4) * std::pow(0.75, kSteps), 1e-5);
    client.leave();
  };
  std::jthread other([&] { train(1); });
  train(0);
}

TEST(Tables, NameWhatIsWrong) {
  Cluster cluster(2);
  Client client(cluster.client(0));
  const std::vector<TableSpec> tables{{.name = "words", .row_floats = 2, .rule = Add{}}};
  Floats rows(4);
  expect_refused(
      [&] {
        client.pull_rows("words", Keys{1, 2}, rows);
      },
      Errc::kInvalidArgument, "call define() first");
  expect_refused([&] { client.define({}, mode(kAsync)); }, Errc::kInvalidArgument,
                 "at least one tensor or table");
  client.define({}, mode(kAsync), tables);
  client.join();
  rows[3] = std::numeric_limits<float>::quiet_NaN();
  expect_refused(
      [&] {
        client.push_rows("words", Keys{1, 4711}, rows);
      },
      Errc::kInvalidArgument,
      "worker 0 pushes NaN for key 4711 of table words, element 1; nothing was sent");
  expect_refused(
      [&] {
        client.push_rows("wrods", Keys{1, 2}, rows);
      },
      Errc::kInvalidArgument, "no table wrods");
  expect_refused([&] { client.pull_rows("words", Keys{1}, rows); }, Errc::kInvalidArgument,
                 "1 rows of table words have 2 floats (2 each), not 4");
  rows[3] = 0;
  expect_refused(
      [&] {
        client.wait(client.push_rows("words", Keys{1, 2}, rows, 0.1));
      },
      Errc::kInvalidArgument, "add has no learning rate");
  client.wait(client.push_rows("words", {}, {}));
  client.wait(client.pull_rows("words", {}, {}));
  EXPECT_EQ(client.stats().rows, 0u);

  Client other(cluster.client(1));
  expect_refused(
      [&] { other.define({}, mode(kAsync), {{.name = "words", .row_floats = 3, .rule = Add{}}}); },
      Errc::kInvalidArgument, "table words has rows of 3 floats, and on the server 2");
  Client reader(cluster.client({}));
  reader.define({}, mode(kAsync), tables);
  expect_refused(
      [&] {
        reader.push_rows("words", Keys{1, 2}, rows);
      },
      Errc::kInvalidArgument, "only pulls");
  reader.wait(reader.pull_rows("words", Keys{1, 2}, rows));
}

// The server refuses a table in files, and goes on. A server with a folder takes it.
TEST(Tables, InFilesNeedAFolderOfTheServers) {
  const std::vector<TableSpec> tables{
      {.name = "words", .row_floats = 2, .rule = Add{}, .mapped = true}};
  Cluster without(2);
  without.wait_for_backups();
  Client first(without.client(0)), second(without.client(1));
  expect_refused([&] { first.define({}, mode(kAsync), tables); }, Errc::kInvalidArgument,
                 "start all servers with a folder");
  second.define({}, mode(kAsync), {{.name = "words", .row_floats = 2, .rule = Add{}}});
  second.join();
  Floats rows{1, 2};
  second.wait(second.push_rows("words", Keys{5}, rows));
  for (const auto& server : without.servers) EXPECT_FALSE(server->failure());

  const TempDir folder;
  ServerOptions options;
  options.folder = folder.path();
  Cluster with(2, options);
  Client client(with.client(0));
  client.define({}, mode(kAsync), tables);
  client.join();
  client.wait(client.push_rows("words", Keys{5}, rows));
  client.wait(client.pull_rows("words", Keys{5}, rows));
  EXPECT_EQ(rows, (Floats{1, 2}));
  EXPECT_GT(client.stats().file_bytes, client.stats().memory_bytes);
}

// It cannot have what the first server has. So it ends, and the chain goes on without it.
TEST(Tables, InFilesEndABackupWithoutAFolder) {
  const TempDir folder;
  ServerOptions options;
  options.folder = folder.path();
  options.server_timeout = 200ms;
  Cluster cluster(2, options);
  cluster.wait_for_backups();
  cluster.servers[1].reset();
  cluster.wait_for_members(1);
  options.folder.clear();
  options.directory = &cluster.directory;
  options.server = 1;
  options.servers = 2;
  cluster.servers[1] = std::make_unique<Server>(options);
  cluster.wait_for_backups();
  Client client(cluster.client(0));
  client.define({}, mode(kAsync),
                {{.name = "words", .row_floats = 2, .rule = Add{}, .mapped = true}});
  ASSERT_TRUE(cluster.servers[1]->failure());
  EXPECT_THAT(cluster.servers[1]->failure()->message(), ::testing::HasSubstr("no folder"));
  client.join();
  Floats rows{1, 2};
  client.wait(client.push_rows("words", Keys{5}, rows));
  client.wait(client.pull_rows("words", Keys{5}, rows));
  EXPECT_EQ(rows, (Floats{1, 2}));
}

TEST(Tables, OfALostServerAreServedByItsBackup) {
  for (const bool local : {true, false}) {
    ServerOptions quick;
    quick.server_timeout = 200ms;
    Cluster cluster(2, quick);
    Client client(cluster.client(0, local));
    client.define({}, mode(kAsync), {{.name = "words", .row_floats = 1, .rule = Add{}}});
    client.join();
    Keys keys(50);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
    const Floats ones(keys.size(), 1.0f);
    client.wait(client.push_rows("words", keys, ones));
    cluster.wait_for_backups();
    client.wait(client.push_rows("words", keys, ones));
    for (int i = 0; i < 4; ++i) {
      client.push_rows("words", keys, ones);
      if (i == 1) cluster.servers[1].reset();
    }
    Floats rows(keys.size());
    client.wait(client.pull_rows("words", keys, rows));
    EXPECT_THAT(rows, Each(6));
  }
}

// The state has several pieces of 1 MiB, and rows change while they are sent.
TEST(Tables, GoToAServerThatComesBackWhileWorkersPush) {
  ServerOptions quick;
  quick.server_timeout = 300ms;
  Cluster cluster(2, quick);
  Client client(cluster.client(0));
  client.define({}, mode(kAsync), {{.name = "words", .row_floats = 64, .rule = Add{}}});
  client.join();
  Keys keys(30'000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = 3 * i;
  client.wait(client.push_rows("words", keys, Floats(64 * keys.size(), 1.0f)));
  cluster.wait_for_backups();
  cluster.servers[1].reset();
  cluster.wait_for_members(1);
  cluster.start(1);
  const Keys few(keys.end() - 500, keys.end());
  int pushes = 1;
  const auto is_complete = [&] {
    const auto views = cluster.directory.views(Deadline::in(1s));
    return views.at(0).members.size() == 2 && views.at(1).members.size() == 2;
  };
  for (const Deadline deadline = Deadline::in(10s); !is_complete(); ++pushes) {
    ASSERT_FALSE(deadline.passed()) << "the server does not come back";
    client.wait(client.push_rows("words", few, Floats(64 * few.size(), 1.0f)));
  }
  cluster.servers[0].reset();
  Floats rows(64 * keys.size());
  client.wait(client.pull_rows("words", keys, rows));
  for (std::size_t i = 0; i < rows.size(); ++i)
    ASSERT_EQ(rows[i], i < 64 * (keys.size() - few.size()) ? 1 : pushes) << i / 64;
  EXPECT_EQ(client.stats().rows, keys.size());
}

TEST(Tables, AreSavedAndLoaded) {
  const std::vector<TableSpec> tables{
      {.name = "words", .row_floats = 2, .rule = kernels::Adam{.lr = 0.1}, .initial_range = 1}};
  Cluster first(2), second(2);
  const Keys keys{1, 2, 3, 4, 5};
  const Floats gradients(10, 0.5f);
  const auto steps = [&](Client& client) {
    Floats rows(10);
    for (int i = 0; i < 3; ++i) client.wait(client.push_rows("words", keys, gradients));
    client.wait(client.pull_rows("words", keys, rows));
    return rows;
  };
  Client before(first.client(0));
  before.define({}, mode(kAsync), tables);
  before.join();
  steps(before);
  // Rows of several pieces.
  Keys many(20'000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = 1000 + i;
  before.wait(before.push_rows("words", many, Floats(2 * many.size(), 1.0f)));
  const std::string saved = before.save();
  const Floats expected = steps(before);
  Client after(second.client(0));
  after.define({}, mode(kAsync), tables);
  after.load(saved);
  after.join();
  EXPECT_EQ(steps(after), expected);
  EXPECT_EQ(after.stats().rows, many.size() + keys.size());
}

TEST(Tables, OfAFullServerLoseNothing) {
  ServerOptions small;
  small.memory_mb = 1;
  Cluster cluster(1, small);
  Client client(cluster.client(0));
  client.define({}, mode(kAsync),
                {{.name = "words", .row_floats = 64, .rule = Add{}, .evict_after = 1}});
  client.join();
  Keys keys(1000), few(keys.begin(), keys.begin() + 500);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  for (std::size_t i = 0; i < few.size(); ++i) few[i] = 10'000 + i;
  client.wait(client.push_rows("words", keys, Floats(64'000, 1.0f)));
  expect_refused(
      [&] {
        client.wait(client.push_rows("words", Keys(3000, 7), Floats(192'000, 1.0f)));
        Keys more(3000);
        for (std::size_t i = 0; i < more.size(); ++i) more[i] = 50'000 + i;
        client.wait(client.push_rows("words", more, Floats(192'000, 1.0f)));
      },
      Errc::kUnavailable, "the parameter server is full");
  Floats rows(64'000);
  client.wait(client.pull_rows("words", keys, rows));
  EXPECT_EQ(rows[0], 1);
  EXPECT_EQ(rows[7 * 64], 3001);
  // Old rows go, and others have room.
  for (int step = 0; step < 3; ++step) client.wait(client.push());
  client.evict_rows("words", 1);
  EXPECT_EQ(client.stats().rows, 0u);
  client.wait(client.push_rows("words", few, Floats(32'000, 1.0f)));
  EXPECT_EQ(client.stats().rows, 500u);
}

TEST(Tables, APullThatEndsAtItsDeadlineLeavesTheCallersMemoryAlone) {
  Cluster cluster(1);
  Client fast(cluster.client(0)), slow(cluster.client(1));
  const std::vector<TableSpec> tables{{.name = "words", .row_floats = 1, .rule = Add{}}};
  for (Client* const client : {&fast, &slow}) {
    client->define({}, mode(kSync), tables);
    client->join();
  }
  fast.push_rows("words", Keys{1}, Floats{1});
  fast.wait(fast.push());
  Floats rows(1, -1.0f);
  const Client::Ticket pull = fast.pull_rows("words", Keys{1}, rows);
  expect_refused([&] { fast.wait(pull, Deadline::in(30ms)); }, Errc::kTimeout,
                 "it may wait for a slower worker");
  slow.wait(slow.push());
  expect_refused([&] { fast.wait(pull); }, Errc::kTimeout, "");
  EXPECT_EQ(rows[0], -1);
  fast.wait(fast.pull_rows("words", Keys{1}, rows));
  EXPECT_EQ(rows[0], 1);
}

// A request has 4 MiB. Four are outstanding, and wait for the slower worker; the fifth finds no
// memory.
TEST(Tables, APullThatFindsNoMemoryInTimeLeavesTheCallersMemoryAlone) {
  Cluster cluster(1);
  ClientOptions short_of_time = cluster.client(0);
  short_of_time.timeout = 300ms;
  Client fast(short_of_time), slow(cluster.client(1));
  const std::vector<TableSpec> tables{{.name = "words", .row_floats = 1024, .rule = Add{}}};
  for (Client* const client : {&fast, &slow}) {
    client->define({}, mode(kSync), tables);
    client->join();
  }
  fast.wait(fast.push());
  Keys keys(5 * 1024);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  Floats rows(1024 * keys.size(), -1.0f);
  expect_refused([&] { fast.pull_rows("words", keys, rows); }, Errc::kTimeout,
                 "it may wait for a slower worker");
  slow.wait(slow.push());
  // The answers to the four come first.
  Floats one(1024, -1.0f);
  fast.wait(fast.pull_rows("words", Keys{1}, one), Deadline::in(20s));
  EXPECT_EQ(one[0], 0);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), -1.0f), std::ssize(rows));
}

}  // namespace rows_test
}  // namespace weft::ps
