#include "weft/ps/table/snapshot.h"

#include <gtest/gtest.h>

#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/ps/table/testing/model_table.h"

namespace weft::ps {
namespace snapshot_test {

using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

TableOptions options_for(const RowRule& rule) {
  return {.row_floats = 3, .rule = rule, .initial_range = 0.5f, .seed = 4};
}

Keys some_keys(Random& random, std::size_t count, std::uint64_t below = 300) {
  Keys keys(count);
  for (auto& key : keys) key = random.below(below);
  return keys;
}

// Pushes, pulls and evicts at random.
void work(Table& table, Random& random, int rounds) {
  Floats out;
  for (int i = 0; i < rounds; ++i) {
    const Keys keys = some_keys(random, 20);
    table.set_clock(table.clock() + 1);
    table.push(keys, some_gradients(random, keys.size() * 3));
    out.resize(keys.size() * 3);
    table.pull(some_keys(random, 20), out);
    table.evict(15);
  }
}

std::string saved(Table& table) {
  std::ostringstream stream;
  save(table, stream);
  return stream.str();
}

Table restored(const TableOptions& options, const std::string& bytes,
               TableReader::Filter filter = {}) {
  std::istringstream stream(bytes);
  return restore(options, stream, std::move(filter));
}

std::string read_all(Table& table, std::size_t piece) {
  std::string bytes;
  while (table.next_snapshot(bytes, piece) == SnapshotState::kMore) {
  }
  return bytes;
}

TEST(TableSnapshot, RestoringGivesTheSameBits) {
  const std::vector<RowRule> rules{Add{}, kernels::Sgd{.momentum = 0.9}, Adagrad{}, kernels::Adam{},
                                   Ftrl{}};
  for (const RowRule& rule : rules) {
    Table table(options_for(rule));
    Random random(5);
    work(table, random, 50);
    const std::string bytes = saved(table);
    Table again = restored(options_for(rule), bytes);
    EXPECT_EQ(again.rows(), table.rows());
    EXPECT_EQ(again.clock(), table.clock());
    const std::string second = saved(again);
    EXPECT_EQ(second.size(), bytes.size());
    Random one(6), other(6);  // the state and the times decide what these do
    work(table, one, 30);
    work(again, other, 30);
    Floats expected(900), found(900);
    Keys keys(300);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
    table.read(keys, expected);
    again.read(keys, found);
    EXPECT_EQ(std::memcmp(expected.data(), found.data(), 900 * sizeof(float)), 0)
        << rule_name(rule);
    EXPECT_EQ(again.rows(), table.rows());
  }
}

TEST(TableSnapshot, HasTheRowsOfItsBeginWhileTheTableServes) {
  constexpr std::uint64_t kKeys = 5000;  // several blocks
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    Table table(options_for(Adagrad{}));
    Random random(seed);
    const Keys keys = some_keys(random, 8000, kKeys);
    table.push(keys, some_gradients(random, keys.size() * 3));
    const std::string expected = saved(table);
    table.begin_snapshot();
    std::string bytes;
    SnapshotState state = SnapshotState::kMore;
    for (std::uint64_t clock = 1; state == SnapshotState::kMore; ++clock) {
      table.set_clock(clock);
      const Keys some = some_keys(random, 50, 2 * kKeys);  // half of them are new
      table.push(some, some_gradients(random, some.size() * 3));
      if (random.below(4) == 0) table.evict(3);
      state = table.next_snapshot(bytes, 1);
    }
    Table at_begin = restored(options_for(Adagrad{}), expected);
    Table found = restored(options_for(Adagrad{}), bytes);
    EXPECT_EQ(found.rows(), at_begin.rows());
    for (std::uint64_t key = 0; key < 2 * kKeys; ++key) {
      const Keys one{key};
      Floats want(3), have(3);
      ASSERT_EQ(found.contains(key), at_begin.contains(key)) << key << ", seed " << seed;
      found.push(one, Floats{0.5f, 0, 0});  // its effect depends on the state
      at_begin.push(one, Floats{0.5f, 0, 0});
      at_begin.pull(one, want);
      found.pull(one, have);
      ASSERT_EQ(have, want) << key << ", seed " << seed;
    }
  }
}

TEST(TableSnapshot, EveryTruncationAndEveryFlippedBitIsRefused) {
  Table table(options_for(Adagrad{}));
  Random random(7);
  work(table, random, 1);
  const std::string bytes = saved(table);
  const auto read = [&](const std::string& changed) {
    try {
      restored(options_for(Adagrad{}), changed);
      return true;
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == Errc::kCorrupt) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return false;
    }
  };
  ASSERT_TRUE(read(bytes));
  for (std::size_t size = 0; size < bytes.size(); size += 7)
    EXPECT_FALSE(read(bytes.substr(0, size))) << "the first " << size << " bytes";
  for (std::size_t at = 0; at < bytes.size(); at += 7) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 1 << at % 8);
    EXPECT_FALSE(read(changed)) << "byte " << at;
  }
  EXPECT_FALSE(read(bytes + "x"));
}

TEST(TableSnapshot, PiecesOfAnySizeGiveTheSameTable) {
  Table table(options_for(kernels::Adam{}));
  Random random(8);
  work(table, random, 40);
  const std::string bytes = saved(table);
  for (const std::size_t size : {1, 7, 56, 1000}) {
    TableReader reader(options_for(kernels::Adam{}));
    for (std::size_t at = 0; at < bytes.size(); at += size)
      reader.feed(std::string_view(bytes).substr(at, size));
    Table again = reader.finish();
    EXPECT_EQ(saved(again), bytes) << size;
  }
}

TEST(TableSnapshot, ASnapshotOfAnotherTableIsRefused) {
  Table table(options_for(Adagrad{}));
  const std::string bytes = saved(table);
  auto other = options_for(Adagrad{});
  other.row_floats = 4;
  const char* const what = "another row length, rule, seed or initial range";
  expect_refused([&] { restored(other, bytes); }, Errc::kInvalidArgument, what);
  expect_refused([&] { restored(options_for(Ftrl{}), bytes); }, Errc::kInvalidArgument, what);
  other = options_for(Adagrad{});
  other.seed = 5;
  expect_refused([&] { restored(other, bytes); }, Errc::kInvalidArgument, what);
  other = options_for(Adagrad{.rule = {.lr = 0.5}});  // may differ
  EXPECT_EQ(restored(other, bytes).rows(), 0u);
}

TEST(TableSnapshot, AReaderKeepsTheKeysOfItsShard) {
  Table table(options_for(Add{}));
  Random random(9);
  const Keys keys = some_keys(random, 200);
  table.push(keys, some_gradients(random, 600));
  const auto upper = [](std::uint64_t key) { return key >= 150; };
  Table part = restored(options_for(Add{}), saved(table), upper);
  for (std::uint64_t key = 0; key < 300; ++key)
    EXPECT_EQ(part.contains(key), table.contains(key) && upper(key));
}

TEST(TableSnapshot, ServingGoesOnIfChangedRowsDoNotFit) {
  constexpr std::uint64_t kIndex = 256 << 10, kRow = 64;
  TableOptions options = options_for(Add{});
  options.max_bytes = kIndex + 100 * kRow + 40;
  Table table(options);
  Keys keys(100);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  table.push(keys, Floats(300, 1.0f));
  table.begin_snapshot();
  table.push(keys, Floats(300, 1.0f));
  std::string bytes;
  expect_refused([&] { table.next_snapshot(bytes); }, Errc::kUnavailable,
                 "begin again and read more often");
  EXPECT_EQ(table.bytes(), kIndex + 100 * kRow);
  expect_refused([&] { table.next_snapshot(bytes); }, Errc::kInvalidArgument,
                 "no snapshot was begun");
  table.begin_snapshot();
  TableOptions free = options;
  free.max_bytes = 0;
  EXPECT_EQ(restored(free, read_all(table, 100)).rows(), 100u);
}

TEST(TableSnapshot, RowsThatDoNotFitAndStreamsThatFailAreErrors) {
  Table table(options_for(Add{}));
  Random random(10);
  work(table, random, 10);
  TableOptions small = options_for(Add{});
  small.max_bytes = (256 << 10) + 64;
  expect_refused([&] { restored(small, saved(table)); }, Errc::kUnavailable, "the table is full");
  std::ostringstream stream;
  stream.setstate(std::ios::badbit);
  expect_refused([&] { save(table, stream); }, Errc::kUnavailable, "the stream failed");
}

}  // namespace snapshot_test
}  // namespace weft::ps
