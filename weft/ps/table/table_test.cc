#include "weft/ps/table/table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/ps/table/testing/model_table.h"

namespace weft::ps {
namespace table_test {

using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

Keys keys_up_to(std::uint64_t count) {
  Keys keys(count);
  std::iota(keys.begin(), keys.end(), std::uint64_t{0});
  return keys;
}

Floats pulled(Table& table, const Keys& keys) {
  Floats out(keys.size() * static_cast<std::size_t>(table.options().row_floats));
  table.pull(keys, out);
  return out;
}

Floats read_of(const Table& table, const Keys& keys) {
  Floats out(keys.size() * static_cast<std::size_t>(table.options().row_floats));
  table.read(keys, out);
  return out;
}

TableOptions options_for(const RowRule& rule, std::int64_t floats = 5) {
  return {.row_floats = floats, .rule = rule, .initial_range = 0.5f, .seed = 11};
}

const std::vector<RowRule>& all_rules() {
  static const std::vector<RowRule> rules{
      Add{},     kernels::Sgd{.lr = 0.1},        kernels::Sgd{.lr = 0.1, .momentum = 0.9},
      Adagrad{}, kernels::Adam{.amsgrad = true}, Ftrl{.l1 = 0.1}};
  return rules;
}

// One random operation on both; keys repeat often.
void operate(Table& table, ModelTable& model, Random& random) {
  Keys keys(random.below(40));
  for (auto& key : keys) key = random.below(2) == 0 ? random.below(100) : random.below(100) << 57;
  const auto width = static_cast<std::size_t>(table.options().row_floats);
  switch (random.below(8)) {
    case 0: ASSERT_EQ(pulled(table, keys), model.pull(keys)); break;
    case 1: ASSERT_EQ(read_of(table, keys), model.read(keys)); break;
    case 6:
      table.touch(keys);
      model.pull(keys);
      break;
    case 7: {
      const std::uint64_t age = random.below(12), first = random.next_u64();
      ASSERT_EQ(table.evict_range(age, first, ~std::uint64_t{0}) +
                    (first == 0 ? 0 : table.evict_range(age, 0, first - 1)),
                model.evict(age));
      break;
    }
    case 2:
      model.clock += random.below(3);
      table.set_clock(model.clock);
      break;
    case 3: {
      const std::uint64_t age = random.below(12);
      ASSERT_EQ(table.evict(age), model.evict(age));
      break;
    }
    default: {
      const Floats gradients = some_gradients(random, keys.size() * width);
      table.push(keys, gradients);
      model.push(keys, gradients);
    }
  }
  ASSERT_EQ(table.rows(), model.rows().size());
}

TEST(Table, DoesWhatAMapDoesUnderRandomOperations) {
  for (const RowRule& rule : all_rules()) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      Table table(options_for(rule));
      ModelTable model(options_for(rule));
      Random random(seed);
      for (int i = 0; i < 300; ++i) {
        operate(table, model, random);
        if (testing::Test::HasFatalFailure()) FAIL() << rule_name(rule) << ", seed " << seed;
      }
      for (std::uint64_t key = 0; key < 100; ++key)
        ASSERT_EQ(table.contains(key), model.rows().count(key) > 0);
    }
  }
}

TEST(Table, FirstWeightsDependOnlyOnSeedAndKey) {
  const TableOptions options = options_for(Add{}, 64);
  Table one(options), other(options);
  const Keys keys{5, 0xffffffffffffffff, 0, 77};
  const Keys backwards(keys.rbegin(), keys.rend());
  pulled(other, backwards);
  EXPECT_EQ(pulled(one, keys), pulled(other, keys));
  TableOptions changed = options;
  changed.seed = 12;
  Table seeded(changed);
  EXPECT_NE(pulled(one, {5}), pulled(seeded, {5}));
  EXPECT_NE(pulled(one, {5}), pulled(one, {6}));
  double sum = 0;
  const Floats many = pulled(one, keys_up_to(200));
  for (const float value : many) {
    ASSERT_GE(value, -0.5f);
    ASSERT_LT(value, 0.5f);
    sum += value;
  }
  EXPECT_NEAR(sum / static_cast<double>(many.size()), 0, 0.02);
}

TEST(Table, ReadingGivesTheWeightsOfANewRowAndMakesNone) {
  Table table(options_for(Adagrad{}));
  const Floats read = read_of(table, {3, 4});
  EXPECT_EQ(table.rows(), 0u);
  EXPECT_EQ(pulled(table, {3, 4}), read);
  EXPECT_EQ(table.rows(), 2u);
}

TEST(Table, SumsTheGradientsOfAKeyBeforeItsUpdate) {
  const RowRule rule = Adagrad{.rule = {.lr = 1}};
  Table table({.row_floats = 1, .rule = rule});
  table.push(Keys{9, 9, 9}, Floats{1, 2, -1});
  Table once({.row_floats = 1, .rule = rule});
  once.push(Keys{9}, Floats{2});
  EXPECT_EQ(pulled(table, {9}), pulled(once, {9}));
  EXPECT_FLOAT_EQ(pulled(table, {9})[0], -1);  // lr 2 / sqrt(2²)
}

TEST(Table, GrowsThroughManySplitsAndReusesEvictedPlaces) {
  constexpr std::uint64_t kRows = 100'000;
  Table table({.row_floats = 1});
  const Keys keys = keys_up_to(kRows);
  Floats numbers(kRows);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  table.push(keys, numbers);
  EXPECT_EQ(read_of(table, keys), numbers);
  table.set_clock(1);
  const Keys half(keys.begin(), keys.begin() + kRows / 2);
  pulled(table, half);
  const std::uint64_t bytes = table.bytes();
  EXPECT_EQ(table.evict(0), kRows / 2);
  EXPECT_EQ(table.rows(), kRows / 2);
  EXPECT_EQ(table.bytes(), bytes) << "the memory stays for later rows";
  EXPECT_FALSE(table.contains(kRows - 1));
  table.push(keys, numbers);
  EXPECT_EQ(table.bytes(), bytes);
  numbers = pulled(table, keys);
  EXPECT_EQ(numbers[7], 14);
  EXPECT_EQ(numbers[kRows - 1], kRows - 1);
}

TEST(Table, EvictsInPiecesAndGoesOnWhereItEnded) {
  Table table({.row_floats = 1});
  pulled(table, keys_up_to(100));
  table.set_clock(10);
  pulled(table, keys_up_to(20));
  EXPECT_EQ(table.evict(10), 0u) << "an age of 10 is not more than 10";
  EXPECT_EQ(table.evict(9, 30), 10u);
  EXPECT_EQ(table.evict(9, 30), 30u);
  EXPECT_EQ(table.evict(9, 1000), 40u);
  EXPECT_EQ(table.rows(), 20u);
}

// Two tables with the same rows, one of which has another history: other segments, other places.
TEST(Table, EvictsARangeOfHashesTheSameWhateverItsHistory) {
  constexpr std::uint64_t kRows = 60'000, kParts = 7;
  const TableOptions options{.row_floats = 1};
  Table fresh(options), old(options);
  pulled(old, keys_up_to(3 * kRows));
  old.set_clock(5);
  for (Table* const table : {&old, &fresh}) {
    table->set_clock(5);
    if (table == &old) table->evict(0);
    table->push(keys_up_to(kRows), Floats(kRows, 1.0f));
    table->set_clock(20);
    table->push(keys_up_to(kRows / 3), Floats(kRows / 3, 1.0f));
  }
  std::uint64_t evicted = 0, first = 0;
  for (std::uint64_t part = 0; part < kParts; ++part) {
    const std::uint64_t last = part + 1 == kParts ? ~std::uint64_t{0} : first + ~0ull / kParts;
    const std::uint64_t count = fresh.evict_range(10, first, last);
    EXPECT_EQ(old.evict_range(10, first, last), count);
    EXPECT_GT(count, kRows / 3 * 2 / kParts / 2);
    evicted += count;
    for (std::uint64_t key = 0; key < kRows; ++key)
      ASSERT_EQ(fresh.contains(key), old.contains(key)) << key;
    first = last + 1;
  }
  EXPECT_EQ(evicted, kRows - kRows / 3);
  EXPECT_EQ(fresh.rows(), kRows / 3);
}

// A read must leave the ages alone: copies that were not read would keep other rows.
TEST(Table, AReadTouchesNoRow) {
  Table table({.row_floats = 1});
  table.push(Keys{1, 2}, Floats{1, 1});
  table.set_clock(5);
  read_of(table, {1});
  table.touch(Keys{2});
  EXPECT_EQ(table.evict(3), 1u);
  EXPECT_FALSE(table.contains(1));
  EXPECT_TRUE(table.contains(2));
}

TEST(Table, RefusesNaNAndInfinityAndNamesTheKey) {
  Table table(options_for(Add{}, 3));
  const Floats before = pulled(table, {1, 2});
  Floats gradients(9, 1.0f);
  gradients[7] = NAN;
  const Keys keys{1, 2, 4711};
  expect_refused([&] { table.push(keys, gradients); }, Errc::kInvalidArgument,
                 "the gradient of key 4711 is NaN at element 1; no row was changed");
  gradients[7] = -INFINITY;
  expect_refused([&] { table.push(keys, gradients); }, Errc::kInvalidArgument,
                 "key 4711 is infinite");
  const float large = std::numeric_limits<float>::max();
  expect_refused(
      [&] {
        table.push(Keys{1, 8, 8}, Floats(9, large));
      },
      Errc::kInvalidArgument, "the sum of the gradients of key 8 is infinite at element 0");
  EXPECT_EQ(table.rows(), 2u);
  EXPECT_EQ(pulled(table, {1, 2}), before);
}

TEST(Table, RefusesArraysOfTheWrongSize) {
  Table table(options_for(Add{}, 3));
  expect_refused(
      [&] {
        table.push(Keys{1, 2}, Floats(5));
      },
      Errc::kInvalidArgument, "push: 5 floats for 2 keys; rows of 3 floats need 6");
  Floats out(7);
  expect_refused(
      [&] {
        table.pull(Keys{1, 2}, out);
      },
      Errc::kInvalidArgument, "pull: 7 floats for 2 keys; rows of 3 floats need 6");
  EXPECT_EQ(table.rows(), 0u);
}

TEST(Table, RefusesOptionsOutOfRange) {
  expect_refused([] { Table table(TableOptions{}); }, Errc::kInvalidArgument, "row_floats = 0");
  expect_refused([] { Table table({.row_floats = 1, .initial_range = NAN}); },
                 Errc::kInvalidArgument, "initial_range");
  expect_refused([] { Table table({.row_floats = 1, .max_bytes = 1000}); }, Errc::kUnavailable,
                 "the table is full");
  expect_refused([] { Table table({.row_floats = 1, .folder = "/nowhere/at/all"}); },
                 Errc::kInvalidArgument, "/nowhere/at/all");
  Table table({.row_floats = 1, .rule = Adagrad{}});
  expect_refused([&] { table.set_rule(Ftrl{}); }, Errc::kInvalidArgument, "the rule adagrad");
  table.set_clock(5);
  expect_refused([&] { table.set_clock(4); }, Errc::kInvalidArgument, "cannot go back from 5 to 4");
}

TEST(Table, ANewLearningRateActsFromTheNextPush) {
  Table table({.row_floats = 1, .rule = kernels::Sgd{.lr = 1}});
  table.push(Keys{1}, Floats{1});
  table.set_rule(kernels::Sgd{.lr = 0.5});
  table.push(Keys{1}, Floats{1});
  EXPECT_EQ(pulled(table, {1}), Floats{-1.5f});
  RowRule rule = Adagrad{};
  set_lr(rule, 0.25);
  EXPECT_EQ(std::get<Adagrad>(rule).rule.lr, 0.25);
  rule = Add{};
  expect_refused([&] { set_lr(rule, 1); }, Errc::kInvalidArgument, "add has no learning rate");
  rule = Ftrl{};
  expect_refused([&] { set_lr(rule, 1); }, Errc::kInvalidArgument, "ftrl cannot change");
}

TEST(Table, LosesNothingWhenItIsFull) {
  constexpr std::uint64_t kIndex = 256 << 10, kRow = 64;  // 32 bytes, 5 floats, rounded up
  TableOptions options = options_for(Add{}, 5);
  options.max_bytes = kIndex + 10 * kRow;
  Table table(options);
  const Keys keys = keys_up_to(8);
  table.push(keys, Floats(40, 1.0f));
  const Floats before = pulled(table, keys);
  const Keys more{0, 1, 100, 101, 102};
  expect_refused([&] { table.push(more, Floats(25, 1.0f)); }, Errc::kUnavailable,
                 "the table is full");
  expect_refused([&] { pulled(table, more); }, Errc::kUnavailable, "evict rows, raise the limit");
  EXPECT_EQ(table.rows(), 8u);
  EXPECT_FALSE(table.contains(100));
  EXPECT_EQ(pulled(table, keys), before);
  table.push(Keys{0, 100, 101}, Floats(15, 1.0f));  // exactly full
  EXPECT_EQ(table.rows(), 10u);
  EXPECT_EQ(table.bytes(), options.max_bytes);
  table.set_clock(1);
  pulled(table, {0});
  EXPECT_EQ(table.evict(0), 9u);
  table.push(more, Floats(25, 1.0f));
  EXPECT_EQ(table.rows(), 5u);
}

TEST(Table, RowsInAFileAreTheSameAndLeaveNothingInTheFolder) {
  const TempDir folder;
  TableOptions options = options_for(Adagrad{});
  options.folder = folder.path();
  Table table(options);
  ModelTable model(options);
  Random random(3);
  for (int i = 0; i < 100; ++i) operate(table, model, random);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  const Keys keys = keys_up_to(100);
  EXPECT_EQ(read_of(table, keys), model.read(keys));
}

TEST(Table, HoldsTheLongestRowsAndTakesEmptyCalls) {
  Table table({.row_floats = TableOptions::kMaxFloats, .rule = kernels::Adam{.amsgrad = true}});
  Floats row(static_cast<std::size_t>(TableOptions::kMaxFloats), 1.0f);
  table.push(Keys{1}, row);
  table.push(Keys{2}, row);
  table.pull(Keys{1}, row);
  EXPECT_NEAR(row.front(), -1e-3, 1e-8);
  EXPECT_EQ(row.back(), row.front());
  table.push({}, {});
  table.pull({}, {});
  EXPECT_EQ(table.rows(), 2u);
}

}  // namespace table_test
}  // namespace weft::ps
