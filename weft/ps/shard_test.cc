// One shard: updates, modes, refusals, repeated commands, snapshots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "weft/base/random.h"
#include "weft/base/testing/refusal.h"
#include "weft/ps/internal/codecs.h"
#include "weft/ps/internal/shard.h"
#include "weft/ps/testing/commands.h"

namespace weft::ps {
namespace shard_test {

using internal::Answer;
using internal::Op;
using internal::Outcome;
using internal::Request;
using internal::Shard;
using testing::Commands;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

constexpr std::uint64_t kMuch = 1'000'000'000;

Options options_with(std::optional<optim::UpdateRule> rule, int staleness) {
  Options options;
  options.rule = std::move(rule);
  options.staleness = staleness;
  return options;
}

Answer done(Shard& shard, const Request& command) {
  EXPECT_EQ(shard.turn(command), Shard::Turn::kNext);
  Answer answer = shard.apply(command);
  EXPECT_EQ(answer.outcome, Outcome::kDone) << answer.text;
  return answer;
}

std::string refused(Shard& shard, const Request& command) {
  const Answer answer = shard.apply(command);
  EXPECT_EQ(answer.outcome, Outcome::kRefused);
  EXPECT_EQ(answer.text.find('\n'), std::string::npos) << answer.text;
  return answer.text;
}

Floats values(const Shard& shard, const std::vector<std::uint32_t>& keys = {}) {
  Request pull;
  pull.keys = keys;
  std::string bytes(shard.pull_bytes(pull), '\0');
  shard.read(pull, std::as_writable_bytes(std::span(bytes)));
  return testing::floats_of(bytes);
}

// A shard with the tensors a [2] and b [1], and `count` workers with the numbers 0, 1, ….
struct Workers {
  Workers(const Options& options, std::uint32_t count, std::uint64_t memory = kMuch)
      : shard(memory) {
    for (std::uint32_t worker = 0; worker < count; ++worker)
      workers.emplace_back(100 + worker, worker);
    for (Commands& one : workers) {
      done(shard, one.define(options, {{"a", {1, 2}}, {"b", {3}}}));
      done(shard, one.join());
    }
  }
  Shard shard;
  std::vector<Commands> workers;
};

TEST(Shard, AddsDeltasAndMakesStepsOfItsRule) {
  Workers plain(options_with(std::nullopt, kAsync), 1);
  done(plain.shard, plain.workers[0].push({1, 2, 3}));
  done(plain.shard, plain.workers[0].push({-8}, {1}));
  EXPECT_THAT(values(plain.shard), ElementsAre(2, 4, -2));
  EXPECT_THAT(values(plain.shard, {1}), ElementsAre(-2));

  // SGD with momentum, by hand: m = g; w -= lr m; m = 0.5 m + g.
  Workers sgd(options_with(kernels::Sgd{.lr = 0.25, .momentum = 0.5}, kAsync), 1);
  done(sgd.shard, sgd.workers[0].push({4, 8, -4}));
  done(sgd.shard, sgd.workers[0].push({4, 8, -4}));
  EXPECT_THAT(values(sgd.shard), ElementsAre(1 - 1 - 1.5, 2 - 2 - 3, 3 + 1 + 1.5));

  const kernels::Adam adam{.lr = 0.01};
  Workers other(options_with(adam, kAsync), 1);
  std::vector<double> weight{1, 2, 3}, mean(3), variance(3);
  for (std::int64_t step = 1; step <= 20; ++step) {
    const float slope = 0.1f * static_cast<float>(step);
    done(other.shard, other.workers[0].push({slope, -slope, 1}));
    const std::vector<double> gradient{slope, -slope, 1};
    optim::update_flat(adam, optim::FlatStep<double>{.weight = weight.data(),
                                                     .gradient = gradient.data(),
                                                     .state = {mean.data(), variance.data()},
                                                     .count = 3,
                                                     .step = step});
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(values(other.shard)[i], weight[i], 1e-6);
}

TEST(Shard, TakesTheLearningRateOfAPush) {
  Workers setup(options_with(kernels::Sgd{.lr = 1}, kAsync), 1);
  Request push = setup.workers[0].push({1, 1, 1});
  push.lr = 0.5;
  done(setup.shard, push);
  EXPECT_THAT(values(setup.shard), ElementsAre(0.5, 1.5, 2.5));
  for (const double lr :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    push = setup.workers[0].push({1, 1, 1});
    push.lr = lr;
    EXPECT_THAT(refused(setup.shard, push), HasSubstr("a learning rate that is not finite"));
  }
  EXPECT_THAT(values(setup.shard), ElementsAre(0.5, 1.5, 2.5));
}

// A step makes one update, so it has one rate.
TEST(Shard, RefusesAnotherLearningRateInAStep) {
  Workers setup(options_with(kernels::Sgd{.lr = 1}, kSync), 2);
  const auto push = [&](std::size_t worker, double lr) {
    Request made = setup.workers[worker].push({1, 1, 1});
    made.lr = lr;
    return made;
  };
  done(setup.shard, push(1, 0.5));
  EXPECT_THAT(refused(setup.shard, push(0, 0.25)),
              HasSubstr("a learning rate of 0.25 and worker 1 of 0.5 for the same step"));
  EXPECT_THAT(refused(setup.shard, push(0, -1)), HasSubstr("of 1 and worker 1 of 0.5"));
  EXPECT_THAT(values(setup.shard), ElementsAre(1, 2, 3));
  done(setup.shard, push(0, 0.5));
  EXPECT_THAT(values(setup.shard), ElementsAre(0.5, 1.5, 2.5));
  done(setup.shard, push(0, 1));  // that of the rule
  done(setup.shard, push(1, -1));
  EXPECT_THAT(values(setup.shard), ElementsAre(-0.5, 0.5, 1.5));
}

TEST(Shard, RefusesALearningRateOfDeltas) {
  Workers setup(options_with(std::nullopt, kAsync), 1);
  Request push = setup.workers[0].push({1, 1, 1});
  push.lr = 0.5;
  EXPECT_THAT(refused(setup.shard, push), HasSubstr("adds deltas as they are"));
  EXPECT_THAT(values(setup.shard), ElementsAre(1, 2, 3));
}

// Two workers on quadratic losses, in binary fractions that float32 has exactly: a reference in
// double, and the bound 0 with pushes in any order.
TEST(Shard, BoundZeroEqualsSynchronousDescent) {
  constexpr int kSteps = 8;  // each adds two digits
  const std::vector<std::vector<double>> targets{{8, -4, 2}, {-2, 6, 1}};
  std::vector<double> expected{1, 2, 3};
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < 3; ++i) {
      const double mean = (expected[i] - targets[0][i] + expected[i] - targets[1][i]) / 2;
      expected[i] -= 0.25 * mean;
    }
  }
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Random random(seed);
    Workers setup(options_with(kernels::Sgd{.lr = 0.25}, kSync), 2);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Floats> seen;
      for (Commands& worker : setup.workers) {
        EXPECT_TRUE(setup.shard.is_ready(worker.pull()));
        seen.push_back(values(setup.shard));
      }
      const std::size_t first = random.below(2);
      for (const std::size_t worker : {first, 1 - first}) {
        Floats gradient(3);
        for (std::size_t i = 0; i < 3; ++i)
          gradient[i] = seen[worker][i] - static_cast<float>(targets[worker][i]);
        done(setup.shard, setup.workers[worker].push(gradient));
        EXPECT_EQ(setup.shard.is_ready(setup.workers[worker].pull()), worker != first);
      }
    }
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(values(setup.shard)[i], expected[i], 1e-10 * (1 + std::abs(expected[i])));
  }
}

TEST(Shard, LetsAWorkerBeTheBoundAheadOfTheSlowest) {
  Workers setup(options_with(std::nullopt, 2), 2);
  Commands& fast = setup.workers[0];
  Commands& slow = setup.workers[1];
  for (int step = 1; step <= 2; ++step) {
    done(setup.shard, fast.push({1, 1, 1}));
    EXPECT_TRUE(setup.shard.is_ready(fast.pull()));
  }
  done(setup.shard, fast.push({1, 1, 1}));
  EXPECT_FALSE(setup.shard.is_ready(fast.pull()));
  EXPECT_TRUE(setup.shard.is_ready(slow.pull()));
  done(setup.shard, slow.push({1, 1, 1}));
  EXPECT_TRUE(setup.shard.is_ready(fast.pull()));
  // The slowest worker goes: nobody waits for it.
  done(setup.shard, fast.push({1, 1, 1}));
  EXPECT_FALSE(setup.shard.is_ready(fast.pull()));
  done(setup.shard, slow.leave());
  EXPECT_TRUE(setup.shard.is_ready(fast.pull()));
  EXPECT_THAT(values(setup.shard, {1}), ElementsAre(3 + 5));
}

TEST(Shard, WorkersJoinAndLeaveDuringAStep) {
  Workers setup(options_with(kernels::Sgd{.lr = 1}, kSync), 3);
  for (int worker : {0, 1}) done(setup.shard, setup.workers[worker].push({1, 1, 1}));
  EXPECT_THAT(values(setup.shard), ElementsAre(1, 2, 3));
  // The third one is dropped by the server, and the step ends with the mean of two.
  Request drop;
  drop.op = Op::kDrop;
  drop.worker = 2;
  drop.client = setup.workers[2].client();
  setup.shard.apply(drop);
  EXPECT_THAT(values(setup.shard), ElementsAre(0, 1, 2));
  EXPECT_THAT(refused(setup.shard, setup.workers[2].push({1, 1, 1})), HasSubstr("does not count"));
  // It joins again at the step of the slowest; the next update needs all three.
  done(setup.shard, setup.workers[2].join());
  for (int worker : {1, 0}) done(setup.shard, setup.workers[worker].push({1, 1, 1}));
  EXPECT_THAT(values(setup.shard), ElementsAre(0, 1, 2));
  done(setup.shard, setup.workers[2].push({4, 4, 4}));
  EXPECT_THAT(values(setup.shard), ElementsAre(-2, -1, 0));
  // A late drop of the earlier process of a worker does not concern the one that has joined since.
  Commands again(999, 2);
  done(setup.shard, again.join());
  setup.shard.apply(drop);
  EXPECT_EQ(setup.shard.workers().size(), 3u);
  EXPECT_THAT(refused(setup.shard, setup.workers[2].push({1, 1, 1})),
              HasSubstr("joined again from another process"));
}

// Its former process still counts: nothing has told the server that it has ended.
TEST(Shard, AWorkerWithoutOthersThatIsStartedAgainGoesOnAtItsStep) {
  Workers setup(options_with(std::nullopt, kAsync), 1);
  for (int step = 1; step <= 3; ++step)
    EXPECT_EQ(done(setup.shard, setup.workers[0].push({1, 1, 1})).clock, step);
  Commands again(999, 0);
  done(setup.shard, again.join());
  EXPECT_EQ(done(setup.shard, again.push({1, 1, 1})).clock, 4);
}

TEST(Shard, RefusesBadPushesAndNamesTensorAndWorker) {
  Workers setup(options_with(kernels::Sgd{.lr = 1, .momentum = 0.9}, kSync), 2);
  const Floats before = values(setup.shard);
  Commands& worker = setup.workers[1];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(refused(setup.shard, worker.push({0, nan, 0})),
              HasSubstr("worker 1 pushed NaN for a[1]"));
  EXPECT_THAT(refused(setup.shard, worker.push({0, 0, -infinity})),
              HasSubstr("worker 1 pushed infinity for b[0]"));
  EXPECT_THAT(refused(setup.shard, worker.push({0, 0})), HasSubstr("8 bytes for 3 values"));
  EXPECT_THAT(refused(setup.shard, worker.push({0}, {7})), HasSubstr("key 7 does not exist"));
  EXPECT_THAT(refused(setup.shard, worker.push({0, 0}, {1, 1})), HasSubstr("b is named twice"));
  Commands stranger(55, 9);
  EXPECT_THAT(refused(setup.shard, stranger.push({0, 0, 0})), HasSubstr("has not joined"));
  Commands other(56, 10);
  EXPECT_THAT(
      refused(setup.shard, other.define(options_with(kernels::Sgd{.lr = 1, .momentum = 0.9}, kSync),
                                        {{"a", {1, 2, 3}}, {"b", {3}}})),
      HasSubstr("a[0 to 3) where the server has a[0 to 2)"));
  EXPECT_EQ(values(setup.shard), before);
  // The step goes on with good values.
  done(setup.shard, setup.workers[0].push({1, 1, 1}));
  done(setup.shard, worker.push({1, 1, 1}));
  EXPECT_THAT(values(setup.shard), ElementsAre(0, 1, 2));
}

TEST(Shard, RefusesWhatDoesNotFitItsMemoryAndLosesNothing) {
  Options options = options_with(kernels::Adam{}, kSync);
  Shard small(20);
  Commands first(1, 0);
  EXPECT_THAT(refused(small, first.define(options, {{"a", Floats(3)}})), HasSubstr("is full"));
  EXPECT_THAT(refused(small, first.join()), HasSubstr("no tensors yet"));

  // 3 values, mean, variance: 36 bytes. One waiting push fits beside them.
  Workers setup(options, 2, 36 + 12 + 4);
  done(setup.shard, setup.workers[0].push({1, 1, 1}));
  const Answer answer = setup.shard.apply(setup.workers[1].push({1, 1, 1}));
  EXPECT_EQ(answer.outcome, Outcome::kRefused);
  EXPECT_EQ(answer.code, Errc::kUnavailable);
  EXPECT_THAT(answer.text, HasSubstr("Raise memory_mb"));
  EXPECT_THAT(values(setup.shard), ElementsAre(1, 2, 3));
  EXPECT_EQ(setup.shard.stats().memory_bytes, 48u);
}

TEST(Shard, AnswersARepeatedCommandWithoutApplyingItAgain) {
  Workers setup(options_with(std::nullopt, kAsync), 1);
  const Floats delta{1, 1, 1};
  const Request push = setup.workers[0].push(delta);
  const Answer first = done(setup.shard, push);
  EXPECT_EQ(setup.shard.turn(push), Shard::Turn::kRepeated);
  const Answer again = setup.shard.answered(push);
  EXPECT_EQ(again.version, first.version);
  EXPECT_EQ(again.clock, first.clock);
  // A command is not applied before the one that its client gave before.
  const Request skipped = setup.workers[0].push(delta);
  const Request late = setup.workers[0].push(delta);
  EXPECT_EQ(setup.shard.turn(late), Shard::Turn::kEarly);
  done(setup.shard, skipped);
  done(setup.shard, late);
  EXPECT_THAT(values(setup.shard, {1}), ElementsAre(3 + 3));
}

// Zheng et al. 2017, equation 10: g + lambda g g (w - w_pulled).
TEST(Shard, CompensatesTheDelayOfAGradient) {
  Options options = options_with(kernels::Sgd{.lr = 0.5}, kAsync);
  options.delay_compensation = 0.25;
  Workers setup(options, 2);
  for (Commands& worker : setup.workers) {
    Request mark = worker.pull();
    mark.op = Op::kMark;
    setup.shard.apply(mark);
  }
  done(setup.shard, setup.workers[0].push({2, 4, 0}));
  EXPECT_THAT(values(setup.shard), ElementsAre(0, 0, 3));
  done(setup.shard, setup.workers[1].push({2, 4, 8}));
  // a[0]: 2 + 0.25 4 (0 - 1) = 1; a[1]: 4 + 0.25 16 (0 - 2) = -4; b[0]: 8.
  EXPECT_THAT(values(setup.shard), ElementsAre(-0.5, 2, -1));

  // DC-ASGD-a, first push: the mean square is 0.05 g g.
  options.adaptive_compensation = true;
  Workers adaptive(options, 2);
  done(adaptive.shard, adaptive.workers[0].push({2, 0, 0}));
  done(adaptive.shard, adaptive.workers[1].push({2, 0, 0}));
  const double square = 0.95 * 0.05 * 4 + 0.05 * 4;
  const double compensated = 2 + 0.25 / std::sqrt(square + 1e-7) * 4 * (0 - 1);
  EXPECT_NEAR(values(adaptive.shard)[0], 0 - 0.5 * compensated, 1e-6);
}

TEST(Shard, CompensatesTheDelaySinceThePullOfTheProcessThatCounts) {
  Options options = options_with(kernels::Sgd{.lr = 1}, kAsync);
  options.delay_compensation = 1;
  Workers setup(options, 2);
  Commands again(999, 0);
  done(setup.shard, again.join());
  done(setup.shard, setup.workers[1].push({-10, 0, 0}));
  Request mark = setup.workers[0].pull();  // of the process before
  mark.op = Op::kMark;
  setup.shard.apply(mark);
  done(setup.shard, again.push({1, 0, 0}));
  // a[0]: 1 + 1 (11 - 1) = 11.
  EXPECT_THAT(values(setup.shard), ElementsAre(0, 2, 3));
}

TEST(Shard, CountsTheStalenessOfPushes) {
  Workers setup(options_with(std::nullopt, kAsync), 2);
  done(setup.shard, setup.workers[0].push({1, 1, 1}, {}, 0));
  done(setup.shard, setup.workers[0].push({1, 1, 1}, {}, 1));
  done(setup.shard, setup.workers[1].push({1, 1, 1}, {}, 0));
  const internal::ShardStats stats = internal::decode_stats(encode(setup.shard.stats()));
  EXPECT_EQ(stats.staleness[0], 2u);
  EXPECT_EQ(stats.staleness[2], 1u);
  EXPECT_EQ(stats.updates, 3u);
  EXPECT_EQ(stats.workers, 2u);
}

TEST(Shard, DecodesPushesAndEncodesPulls) {
  Options options = options_with(std::nullopt, kAsync);
  options.push_codec = "int8:64,ef=off";
  options.pull_codec = "bf16";
  Workers setup(options, 1);
  const auto codec = compress::make_codec(compress::parse(options.push_codec));
  Request push = setup.workers[0].push({});
  std::string payload =
      internal::encode_values(*codec, Floats{1, -1}, internal::draw_of(1, push, 0), nullptr) +
      internal::encode_values(*codec, Floats{0.5f}, internal::draw_of(1, push, 1), nullptr);
  push.payload = payload;
  done(setup.shard, push);
  Request pull;
  EXPECT_EQ(setup.shard.pull_bytes(pull), 8u);  // each tensor is padded to 4 bytes
  std::string bytes(8, '\0');
  setup.shard.read(pull, std::as_writable_bytes(std::span(bytes)));
  Floats seen(2);
  compress::make_codec(compress::parse("bf16"))
      ->add(std::as_bytes(std::span(bytes)).first(4), {}, seen);
  EXPECT_NEAR(seen[0], 2, 0.02);
  EXPECT_NEAR(seen[1], 1, 0.02);
  // Every cut of the codes is refused.
  for (std::size_t size = 0; size < payload.size(); ++size) {
    Request cut = setup.workers[0].push({});
    cut.payload = std::string_view(payload).substr(0, size);
    EXPECT_THAT(refused(setup.shard, cut), HasSubstr("worker 0 pushed"));
  }
}

// Codes of a tensor may be more than 4 GiB, and so may the answer to a pull of differences.
TEST(Shard, CountsTheBytesOfCodesAndAnswersIn64Bits) {
  const auto codec = compress::make_codec(compress::parse("bf16"));
  const compress::Draw draw = internal::draw_of(1, {}, 0, 5);
  const std::string codes = internal::encode_values(*codec, Floats{1, 2, 3, 4}, draw, nullptr);
  std::uint64_t size = 0;
  ASSERT_GE(codes.size(), sizeof size);
  std::memcpy(&size, codes.data(), sizeof size);
  EXPECT_EQ(size, 8u);

  internal::Applied applied;
  Request command;
  command.client = 7;
  command.sequence = 1;
  Answer answer;
  answer.payload = "values";
  applied.add(command, answer);
  internal::ByteWriter out;
  applied.put(out);
  const std::string state = out.take();
  const std::size_t bytes = encode(answer).size();
  ASSERT_GE(state.size(), bytes + sizeof size);
  std::memcpy(&size, state.data() + state.size() - bytes - sizeof size, sizeof size);
  EXPECT_EQ(size, bytes);
  internal::ByteReader in(state);
  EXPECT_EQ(internal::Applied::taken(in).answer(command).payload, "values");
}

// The worker adds what it gets; with a codec, the rest comes with later pulls.
TEST(Shard, GivesDifferencesToWhatTheWorkerHas) {
  for (const std::string codec : {"none", "int8:8", "topk:0.5", "randomk:0.5", "sign:8"}) {
    Options options = options_with(kernels::Sgd{.lr = 1}, kAsync);
    options.pull_deltas = true;
    options.pull_codec = codec;
    Workers setup(options, 2);
    Commands& worker = setup.workers[1];
    const auto whole = testing::floats_of(done(setup.shard, worker.pull_delta(true)).payload);
    EXPECT_THAT(whole, ElementsAre(1, 2, 3));
    Floats has = whole;
    const auto decoder = codec == "none" ? nullptr : compress::make_codec(compress::parse(codec));
    done(setup.shard, setup.workers[0].push({4, -8, 2}));
    for (int pull = 0; pull < (decoder ? 30 : 1); ++pull) {
      const Request request = worker.pull_delta(false);
      const std::string payload = done(setup.shard, request).payload;
      // A repeated pull gets the same difference, and does not count twice.
      EXPECT_EQ(setup.shard.turn(request), Shard::Turn::kRepeated);
      EXPECT_EQ(setup.shard.answered(request).payload, payload);
      if (!decoder) {
        const Floats sent = testing::floats_of(payload);
        EXPECT_THAT(sent, ElementsAre(-4, 8, -2));
        for (std::size_t i = 0; i < 3; ++i) has[i] += sent[i];
        continue;
      }
      std::string_view rest(payload);
      for (std::uint32_t key = 0; key < 2; ++key)
        internal::decode_values(*decoder, rest, internal::draw_of(1, request, key),
                                std::span(has).subspan(2 * key, key == 0 ? 2u : 1u));
    }
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(has[i], values(setup.shard)[i], 1e-3) << codec << " " << i;
    Shard copy(kMuch);
    copy.restore(setup.shard.snapshot());
    EXPECT_EQ(copy.snapshot(), setup.shard.snapshot());
    const Request next = worker.pull_delta(false);
    EXPECT_EQ(done(copy, next).payload, done(setup.shard, next).payload);
  }
  Workers setup(options_with(std::nullopt, kAsync), 1);
  EXPECT_THAT(refused(setup.shard, setup.workers[0].pull_delta(true)), HasSubstr("pull_deltas"));
}

TEST(Shard, RestoresItsWholeState) {
  Options options = options_with(kernels::Adam{.lr = 0.1}, kSync);
  Workers setup(options, 2);
  for (int step = 0; step < 3; ++step) {
    for (Commands& worker : setup.workers) done(setup.shard, worker.push({1, -1, 2}));
  }
  done(setup.shard, setup.workers[1].push({5, 5, 5}));  // waits for the other one
  Shard copy(kMuch);
  copy.restore(setup.shard.snapshot());
  EXPECT_EQ(copy.snapshot(), setup.shard.snapshot());
  const Request push = setup.workers[0].push({1, 1, 1});
  done(setup.shard, push);
  done(copy, push);
  EXPECT_EQ(copy.snapshot(), setup.shard.snapshot());
  const std::string bytes = copy.snapshot();
  for (std::size_t size = 0; size < bytes.size(); size += 7)
    expect_refused([&] { copy.restore(std::string_view(bytes).substr(0, size)); }, Errc::kCorrupt,
                   "");
  EXPECT_EQ(copy.snapshot(), bytes);
}

}  // namespace shard_test
}  // namespace weft::ps
