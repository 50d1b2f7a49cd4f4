// Rows of embedding tables in one shard: updates, modes, refusals, eviction, copies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "weft/base/file.h"
#include "weft/base/random.h"
#include "weft/base/testing/refusal.h"
#include "weft/ps/internal/codecs.h"
#include "weft/ps/testing/commands.h"
#include "weft/ps/testing/shard_state.h"

namespace weft::ps {
namespace shard_rows_test {

using internal::Answer;
using internal::Op;
using internal::Outcome;
using internal::Request;
using internal::Shard;
using testing::Commands;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Floats = std::vector<float>;
using Keys = std::vector<std::uint64_t>;

constexpr std::uint64_t kMuch = 1'000'000'000;

Options mode(int staleness) {
  Options options;
  options.rule = kernels::Sgd{.lr = 1};
  options.staleness = staleness;
  return options;
}

Answer done(Shard& shard, const Request& command) {
  Answer answer = shard.apply(command);
  EXPECT_EQ(answer.outcome, Outcome::kDone) << answer.text;
  return answer;
}

Answer refused(Shard& shard, const Request& command) {
  Answer answer = shard.apply(command);
  EXPECT_EQ(answer.outcome, Outcome::kRefused);
  EXPECT_EQ(answer.text.find('\n'), std::string::npos) << answer.text;
  return answer;
}

Floats rows(const Shard& shard, std::uint32_t table, const Keys& keys) {
  Commands reader(1, internal::kNoWorker);
  const Request pull = reader.pull_rows(table, keys);
  EXPECT_EQ(shard.check_pull(pull).outcome, Outcome::kDone) << shard.check_pull(pull).text;
  std::string bytes(shard.pull_bytes(pull), '\0');
  shard.read(pull, std::as_writable_bytes(std::span(bytes)));
  return testing::floats_of(bytes);
}

// A shard with the tensor a [1] and some tables.
struct Workers {
  Workers(const Options& options, const std::vector<TableSpec>& tables, std::uint32_t count,
          std::uint64_t memory = kMuch)
      : shard(memory) {
    for (std::uint32_t worker = 0; worker < count; ++worker)
      workers.emplace_back(100 + worker, worker);
    for (Commands& one : workers) {
      done(shard, one.define(options, {{"a", {0}}}, tables));
      done(shard, one.join());
    }
  }
  void push(std::size_t worker, const Keys& keys, const Floats& values) {
    done(shard, workers[worker].push_rows(0, keys, values));
  }
  void end_step(std::size_t worker) { done(shard, workers[worker].push({1})); }
  Shard shard;
  std::vector<Commands> workers;
};

TableSpec words(const RowRule& rule, std::int64_t floats = 2) {
  return {.name = "words", .row_floats = floats, .rule = rule};
}

TEST(ShardRows, AreUpdatedAtOnceByTheRuleOfTheirTable) {
  Workers setup(mode(kAsync), {words(kernels::Sgd{.lr = 0.5}), words(Add{}, 1)}, 0);
  Commands worker(100, 0);
  EXPECT_THAT(
      refused(setup.shard, worker.define(mode(kAsync), {}, {words(Add{}), words(Add{})})).text,
      HasSubstr("table words is defined twice"));
  TableSpec other = words(Add{}, 1);
  other.name = "deltas";
  done(setup.shard,
       worker.define(mode(kAsync), {{"a", {0}}}, {words(kernels::Sgd{.lr = 0.5}), other}));
  EXPECT_THAT(refused(setup.shard, worker.push_rows(0, {1}, {1, 1})).text,
              HasSubstr("worker 0 has not joined"));
  done(setup.shard, worker.join());
  done(setup.shard, worker.push_rows(0, {7, 8, 7}, {1, 2, 10, 20, 1, 2}));
  done(setup.shard, worker.push_rows(1, {7, 9}, {3, 4}));
  EXPECT_THAT(rows(setup.shard, 0, {8, 7, 9}), ElementsAre(-5, -10, -1, -2, 0, 0));
  EXPECT_THAT(rows(setup.shard, 1, {7, 8, 9}), ElementsAre(3, 0, 4));
  EXPECT_EQ(setup.shard.stats().rows, 4u);
  Request push = worker.push_rows(0, {8}, {1, 1});
  push.lr = 2;
  done(setup.shard, push);
  EXPECT_THAT(rows(setup.shard, 0, {8}), ElementsAre(-7, -12));
  done(setup.shard, worker.push_rows(0, {8}, {1, 1}));
  EXPECT_THAT(rows(setup.shard, 0, {8}), ElementsAre(-7.5, -12.5));
}

TEST(ShardRows, OfAStepHaveOneLearningRate) {
  Workers setup(mode(kSync), {words(kernels::Sgd{.lr = 0.5}, 1)}, 2);
  const auto push = [&](std::size_t worker, double lr) {
    Request made = setup.workers[worker].push_rows(0, {7}, {2});
    made.lr = lr;
    return made;
  };
  done(setup.shard, push(0, 0.25));
  EXPECT_THAT(refused(setup.shard, push(0, 0.125)).text,
              HasSubstr("rows of table words with the learning rate 0.125 and worker 0 with 0.25"));
  EXPECT_THAT(refused(setup.shard, push(1, -1)).text, HasSubstr("that of the rule"));
  done(setup.shard, push(1, 0.25));
  setup.end_step(0);
  setup.end_step(1);
  EXPECT_THAT(rows(setup.shard, 0, {7}), ElementsAre(-0.5));
}

// Bound 0: the mean over the workers of a step, in one update; a missing row counts as zero.
TEST(ShardRows, OfAStepAreUpdatedTogether) {
  Workers setup(mode(kSync), {words(Adagrad{.rule = {.lr = 1}}, 1)}, 2);
  Shard alone(kMuch);
  Commands one(7, 0);
  done(alone, one.define(mode(kAsync), {{"a", {0}}}, {words(Adagrad{.rule = {.lr = 1}}, 1)}));
  done(alone, one.join());
  for (int step = 0; step < 3; ++step) {
    setup.push(0, {1, 2}, {4, 2});
    setup.push(0, {1}, {2});
    EXPECT_EQ(rows(setup.shard, 0, {1, 2, 3}), rows(alone, 0, {1, 2, 3}));
    setup.end_step(0);
    EXPECT_FALSE(setup.shard.is_ready(setup.workers[0].pull_rows(0, {1})));
    setup.push(1, {1, 3}, {6, -4});
    EXPECT_EQ(rows(setup.shard, 0, {1, 2, 3}), rows(alone, 0, {1, 2, 3}));
    setup.end_step(1);
    EXPECT_TRUE(setup.shard.is_ready(setup.workers[0].pull_rows(0, {1})));
    done(alone, one.push_rows(0, {1, 2, 3}, {6, 1, -2}));
    EXPECT_EQ(rows(setup.shard, 0, {1, 2, 3}), rows(alone, 0, {1, 2, 3}));
  }
}

TEST(ShardRows, OfAStepThatItsWorkerDoesNotEndAreNotApplied) {
  Workers setup(mode(kSync), {words(Add{}, 1)}, 2);
  const std::uint64_t before = setup.shard.stats().memory_bytes;
  setup.push(0, {1}, {1});
  setup.push(1, {1, 2}, {10, 10});
  done(setup.shard, setup.workers[1].leave());
  setup.end_step(0);
  EXPECT_THAT(rows(setup.shard, 0, {1, 2}), ElementsAre(1, 0));
  // After an error, a worker joins again and begins its step again.
  setup.push(0, {1}, {100});
  done(setup.shard, setup.workers[0].join());
  setup.push(0, {1}, {1});
  setup.end_step(0);
  EXPECT_THAT(rows(setup.shard, 0, {1}), ElementsAre(2));
  const std::uint64_t row = internal::row_cost(words(Add{}, 1));
  EXPECT_EQ(setup.shard.stats().memory_bytes, before + 2 * row) << "no push waits any more";
}

TEST(ShardRows, KeepToTheBoundOfTheStaleness) {
  Workers setup(mode(1), {words(Add{}, 1)}, 2);
  setup.push(0, {5}, {1});
  setup.end_step(0);
  EXPECT_TRUE(setup.shard.is_ready(setup.workers[0].pull_rows(0, {5})));
  EXPECT_THAT(rows(setup.shard, 0, {5}), ElementsAre(1));
  setup.end_step(0);
  EXPECT_FALSE(setup.shard.is_ready(setup.workers[0].pull_rows(0, {5})));
  setup.end_step(1);
  EXPECT_TRUE(setup.shard.is_ready(setup.workers[0].pull_rows(0, {5})));
}

TEST(ShardRows, AreRefusedWithTheNameOfTableAndKey) {
  for (const int staleness : {kSync, kAsync}) {
    Workers setup(mode(staleness), {words(Add{})}, 2);
    Commands& worker = setup.workers[1];
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(refused(setup.shard, worker.push_rows(0, {3, 4711}, {0, 0, 0, nan})).text,
                HasSubstr("worker 1 pushed NaN for key 4711 of table words, element 1, at its "
                          "step 0; the push is refused, and nothing was changed"));
    EXPECT_THAT(
        refused(setup.shard, worker.push_rows(0, {3}, {-std::numeric_limits<float>::infinity(), 0}))
            .text,
        HasSubstr("infinity for key 3 of table words"));
    EXPECT_THAT(refused(setup.shard, worker.push_rows(0, {3, 4}, {1, 1, 1})).text,
                HasSubstr("12 bytes for 2 rows of 2 floats of table words"));
    EXPECT_THAT(refused(setup.shard, worker.push_rows(1, {3}, {1, 1})).text,
                HasSubstr("names a table that does not exist; the server has 1 tables"));
    Request push = worker.push_rows(0, {3}, {1, 1});
    push.lr = 0.1;
    EXPECT_THAT(refused(setup.shard, push).text, HasSubstr("add has no learning rate"));
    push = worker.push_rows(0, {3}, {1, 1});
    push.payload.remove_suffix(9);
    EXPECT_THAT(refused(setup.shard, push).text, HasSubstr("worker 1 pushed"));
    push.payload = push.payload.substr(0, 12);
    EXPECT_THAT(refused(setup.shard, push).text, HasSubstr("worker 1 pushed"));
    const float large = std::numeric_limits<float>::max();
    const Answer sum = setup.shard.apply(worker.push_rows(0, {3, 3}, {large, 0, large, 0}));
    EXPECT_EQ(sum.outcome, Outcome::kRefused);
    EXPECT_THAT(sum.text, HasSubstr("key 3"));
    EXPECT_EQ(setup.shard.stats().rows, 0u);
    setup.push(1, {3}, {1, 1});
  }
  Workers setup(mode(kAsync), {words(Add{})}, 1);
  Commands other(55, 9);
  const std::vector<TableSpec> wide{words(Add{}, 3)};
  EXPECT_THAT(refused(setup.shard, other.define(mode(kAsync), {{"a", {0}}}, wide)).text,
              HasSubstr("table words has rows of 3 floats, and on the server 2"));
  EXPECT_THAT(refused(setup.shard, other.define(mode(kAsync), {{"a", {0}}})).text,
              HasSubstr("it has 0 tables, and the server 1"));
  TableSpec bad = words(Ftrl{.alpha = -1});
  Shard fresh(kMuch);
  EXPECT_THAT(refused(fresh, other.define(mode(kAsync), {{"a", {0}}}, {bad})).text,
              HasSubstr("table words: ftrl: alpha"));
}

TEST(ShardRows, ThatDoNotFitAreRefusedAndNothingIsLost) {
  const std::uint64_t row = internal::row_cost(words(Add{})), empty = 256 << 10;
  for (const int staleness : {kSync, kAsync}) {
    const std::uint64_t waits = staleness == kSync ? 2 * (8 + 8) : 0;
    Workers setup(mode(staleness), {words(Add{})}, 1, 4 + empty + 4 * row + waits + 4);
    setup.push(0, {1, 2}, {1, 1, 1, 1});
    setup.end_step(0);
    const Answer answer =
        refused(setup.shard, setup.workers[0].push_rows(0, {1, 3, 4, 5}, Floats(8, 1.0f)));
    EXPECT_EQ(answer.code, Errc::kUnavailable);
    EXPECT_THAT(answer.text, HasSubstr("the rows that worker 0 pushed to words would take"));
    EXPECT_THAT(answer.text, HasSubstr("nothing was changed. Raise memory_mb"));
    EXPECT_THAT(rows(setup.shard, 0, {1, 2, 3}), ElementsAre(1, 1, 1, 1, 0, 0));
    // Rows that are there, and repeated keys, take no room.
    setup.push(0, {3, 3}, Floats(4, 1.0f));
    setup.end_step(0);
    setup.push(0, {1, 4}, Floats(4, 1.0f));
    setup.end_step(0);
    EXPECT_EQ(setup.shard.stats().rows, 4u);
    refused(setup.shard, setup.workers[0].push_rows(0, {6}, Floats(2, 1.0f)));
  }
}

// A table in files, without a folder: this server cannot have it, another one perhaps.
TEST(ShardRows, InFilesNeedAFolderAndHaveALimitOfTheirOwn) {
  TableSpec mapped = words(Add{});
  mapped.mapped = true;
  Commands worker(1, 0);
  Shard without(kMuch);
  expect_refused([&] { without.apply(worker.define(mode(kAsync), {}, {mapped})); },
                 Errc::kInvalidArgument, "this server has no folder");
  const TempDir folder;
  const std::uint64_t row = internal::row_cost(mapped);
  Shard shard(4, true, {folder.path(), (256 << 10) + 2 * row});
  Commands other(1, 0);
  done(shard, other.define(mode(kAsync), {{"a", {0}}}, {mapped}));
  done(shard, other.join());
  done(shard, other.push_rows(0, {1, 2}, {1, 1, 1, 1}));
  const Answer answer = refused(shard, other.push_rows(0, {3}, {1, 1}));
  EXPECT_EQ(answer.code, Errc::kUnavailable);
  EXPECT_THAT(answer.text, HasSubstr("Raise folder_mb"));
  EXPECT_EQ(shard.stats().file_bytes, (256u << 10) + 2 * row);
  EXPECT_EQ(shard.stats().memory_bytes, 4u);
}

// One copy is read, and the other one is restored in between. Both have the same rows.
TEST(ShardRows, AreTheSameOnAllCopies) {
  for (const int staleness : {kSync, kAsync}) {
    TableSpec young = words(kernels::Adam{.lr = 0.1}, 3);
    young.name = "young";
    young.evict_after = 2;
    young.initial_range = 0.5f;
    young.push_codec = "int8:8,stochastic";
    Workers setup(mode(staleness), {words(Adagrad{}), young}, 2);
    Shard copy(kMuch);
    const auto codec = compress::make_codec(compress::parse(young.push_codec));
    Random random(3);
    std::uint64_t most = 0;
    copy.restore(setup.shard.snapshot());
    for (int step = 0; step < 60; ++step) {
      for (Commands& worker : setup.workers) {
        const auto both = [&](const Request& command) {
          done(setup.shard, command);
          done(copy, command);
        };
        Keys keys(random.below(80));
        for (auto& key : keys) key = random.below(6000);
        both(worker.push_rows(0, keys, Floats(2 * keys.size(), 0.5f)));
        // Its values go through the codec.
        Request push = worker.push_rows(1, keys, {});
        const std::string payload = std::string(push.payload) +
                                    internal::encode_values(*codec, Floats(3 * keys.size(), 0.3f),
                                                            internal::draw_of(1, push, 1), nullptr);
        push.payload = payload;
        both(push);
        rows(setup.shard, 0, {1, 2, 3});
        rows(setup.shard, 1, {4, 5, 6});
        if (random.below(3) > 0 || staleness == kSync) both(worker.push({1}));
      }
      most = std::max(most, setup.shard.tables().table(1).rows());
      if (step % 20 == 15) {
        // In pieces, while it goes on. The pushes since come after them.
        Shard fresh(kMuch);
        fresh.receive_state(copy.begin_state());
        const Keys keys{1, 9000};
        std::vector<Request> pushes;
        for (Commands& worker : setup.workers) {
          pushes.push_back(worker.push_rows(0, keys, Floats(4, 1.0f)));
          done(setup.shard, pushes.back());
          done(copy, pushes.back());
        }
        while (const auto rows = copy.next_rows()) fresh.receive_rows(*rows);
        fresh.finish_state();
        EXPECT_FALSE(testing::state_of(fresh) == testing::state_of(copy));
        for (const Request& push : pushes) done(fresh, push);
        EXPECT_TRUE(testing::state_of(fresh) == testing::state_of(copy));
        copy.begin_state();
        copy.snapshot();
        expect_refused([&] { copy.next_rows(); }, Errc::kAborted, "for another purpose");
      }
      if (step % 20 == 10) {
        Shard fresh(kMuch);
        fresh.restore(copy.snapshot());
        EXPECT_TRUE(testing::state_of(fresh) == testing::state_of(copy));
        copy = std::move(fresh);
      }
      ASSERT_TRUE(testing::state_of(copy) == testing::state_of(setup.shard)) << step;
    }
    EXPECT_GT(setup.shard.tables().table(0).rows(), 2500u);
    EXPECT_LT(setup.shard.tables().table(1).rows(), 1000u) << "old rows are evicted";
    EXPECT_LT(most, 1000u);
    const std::string bytes = copy.snapshot();
    for (std::size_t size = 0; size < bytes.size(); size += 9973)
      expect_refused([&] { copy.restore(std::string_view(bytes).substr(0, size)); }, Errc::kCorrupt,
                     "");
  }
}

TEST(ShardRows, GoThroughTheCodecOfPulls) {
  TableSpec table = words(Add{}, 3);
  table.pull_codec = "bf16";
  Workers setup(mode(kAsync), {table}, 1);
  setup.push(0, {1, 2}, {1, 2, 3, 4, 5, 6.01f});
  const Request pull = setup.workers[0].pull_rows(0, {2, 1});
  ASSERT_EQ(setup.shard.pull_bytes(pull), 12u);
  std::vector<std::uint32_t> codes(3);
  setup.shard.read(pull, std::as_writable_bytes(std::span(codes)));
  Floats seen(6);
  compress::make_codec(compress::parse("bf16"))->add(std::as_bytes(std::span(codes)), {}, seen);
  EXPECT_THAT(seen, ElementsAre(4, 5, 6, 1, 2, 3));
}

TEST(ShardRows, AreLoadedFromASavedState) {
  TableSpec table = words(Adagrad{});
  Workers setup(mode(kAsync), {table}, 1);
  setup.push(0, {1, 2}, {1, 2, 3, 4});
  setup.end_step(0);
  const std::string saved = testing::save(setup.shard);
  const auto load = [&](Shard& shard, const std::vector<TableSpec>& tables) {
    Commands worker(9, 0);
    done(shard, worker.define(mode(kAsync), {{"a", {0}}}, tables));
    Request command = worker.join();
    command.op = Op::kLoad;
    command.payload = saved;
    return shard.apply(command);
  };
  Shard again(kMuch);
  table.rule = Adagrad{.rule = {.lr = 0.5}};  // another learning rate
  EXPECT_EQ(load(again, {table}).outcome, Outcome::kDone);
  EXPECT_EQ(rows(again, 0, {1, 2, 3}), rows(setup.shard, 0, {1, 2, 3}));
  Shard none(kMuch), wide(kMuch), small(4 + (256 << 10) + internal::row_cost(table));
  EXPECT_THAT(load(none, {}).text, HasSubstr("a table words, which define() did not name"));
  EXPECT_THAT(load(wide, {words(Adagrad{}, 3)}).text,
              HasSubstr("table words: the snapshot is of a table with another row length"));
  const Answer full = load(small, {table});
  EXPECT_EQ(full.code, Errc::kUnavailable);
  EXPECT_THAT(full.text, HasSubstr("the rows of the saved state"));
  EXPECT_EQ(small.stats().rows, 0u);
}

TEST(ShardRows, AreEvictedOnRequest) {
  Workers setup(mode(kAsync), {words(Add{}, 1)}, 1);
  setup.push(0, {1, 2, 3}, {1, 1, 1});
  for (int step = 0; step < 5; ++step) setup.end_step(0);
  setup.push(0, {2}, {1});
  const auto evict = [&](std::uint64_t first, std::uint64_t last) {
    Request command = setup.workers[0].leave();
    command.op = Op::kEvict;
    command.keys = {0};
    const std::uint64_t numbers[] = {4, first, last};
    const std::string payload(reinterpret_cast<const char*>(numbers), sizeof numbers);
    command.payload = payload;
    return setup.shard.apply(command);
  };
  EXPECT_EQ(evict(5, 4).outcome, Outcome::kRefused);
  EXPECT_EQ(evict(0, ~std::uint64_t{0}).outcome, Outcome::kDone);
  EXPECT_EQ(setup.shard.stats().rows, 1u);
  EXPECT_THAT(rows(setup.shard, 0, {1, 2, 3}), ElementsAre(0, 2, 0));
}

}  // namespace shard_rows_test
}  // namespace weft::ps
