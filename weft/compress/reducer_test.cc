#include "weft/compress/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "weft/base/error.h"
#include "weft/compress/testing/ranks.h"

namespace weft::compress {
namespace {

using internal::Floats, internal::gradients, internal::Ranks, internal::sum_of, internal::unit_of;

constexpr const char* kCodecs[] = {"bf16",      "f16",       "int8",         "int4",
                                   "sign",      "topk:0.05", "randomk:0.05", "threshold:0.02",
                                   "powersgd:2"};

std::vector<std::string> specs() {
  std::vector<std::string> all{"none", "int8,stochastic", "int4,stochastic"};
  for (const char* codec : kCodecs) {
    for (const char* memory : {",ef=on", ",ef=off", ",delta"})
      all.push_back(std::string(codec) + memory);
  }
  return all;
}

TEST(Reducer, GivesTheSameBitsOnEveryRank) {
  for (const auto& spec : specs()) {
    for (int world = 1; world <= 4; ++world) {
      for (const std::int64_t count : {0, 1, 100, 3000, 5000}) {
        Ranks ranks(spec, unit_of(count), world);
        for (std::uint64_t step = 0; step < 3; ++step) {
          auto values = gradients(world, count, step);
          ranks.step(values);
          for (int rank = 1; rank < world && count > 0; ++rank) {
            ASSERT_EQ(std::memcmp(values[static_cast<std::size_t>(rank)].data(), values[0].data(),
                                  static_cast<std::size_t>(count) * 4),
                      0)
                << spec << ", world " << world << ", count " << count;
          }
        }
      }
    }
  }
}

TEST(Reducer, SumsExactlyInAWorldOfOneAndInWarmUp) {
  for (const auto& spec : specs()) {
    const bool options = spec != "none";
    for (int world = 1; world <= 3; ++world) {
      Ranks ranks(spec + (options && world > 1 ? ",warmup=2" : ""), unit_of(3000), world);
      for (std::uint64_t step = 0; step < 2; ++step) {
        auto values = gradients(world, 3000, step);
        const auto want = sum_of(values);
        ranks.step(values);
        for (std::size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(values[0][i], want[i], 1e-6) << spec << " " << world;
      }
    }
  }
}

// Bit for bit, whatever was undone, and with several sums in the step that was skipped.
TEST(Reducer, GoesOnAfterAnUndoneStepAsIfItHadNotBeen) {
  std::vector<std::string> all = specs();
  for (const char* spec : {"sign:64", "randomk:0.25", "topk:0.05,momentum=before", "int8,warmup=2"})
    all.emplace_back(spec);
  for (const auto& spec : all) {
    for (const int world : {2, 4}) {
      Unit unit = unit_of(5000);
      unit.momentum = {.factor = 0.9};
      Ranks undone(spec, unit, world), plain(spec, unit, world);
      undone.commit();
      for (std::uint64_t step = 0; step < 5; ++step) {
        if (step % 2 == 1) {
          auto skipped = gradients(world, 5000, 100 + step);
          undone.step(skipped);
          if (step == 3) undone.step(skipped);
          undone.rollback();
        }
        auto values = gradients(world, 5000, step), expected = values;
        undone.step(values);
        undone.commit();
        plain.step(expected);
        ASSERT_EQ(std::memcmp(values[0].data(), expected[0].data(), 5000 * 4), 0)
            << spec << ", world " << world << ", step " << step;
      }
    }
  }
}

TEST(Reducer, TellsWhenSumsLeaveTheRangeOfF16) {
  // With delta, each rank's code is in range, and the sum has 32 bits.
  for (const auto& [spec, fits] :
       {std::pair{"f16", false}, {"f16,ef=on", false}, {"f16,delta", true}, {"bf16", true}}) {
    Ranks ranks(spec, unit_of(100), 2);
    std::vector<Floats> values(2, Floats(100, 1.0f));
    ranks.step(values);
    EXPECT_TRUE(ranks[0].is_in_range()) << spec;
    values.assign(2, Floats(100, 40000.0f));
    ranks.step(values);
    EXPECT_EQ(ranks[1].is_in_range(), fits) << spec;
    values.assign(2, Floats(100, 1.0f));
    ranks.step(values);
    EXPECT_TRUE(ranks[0].is_in_range()) << spec;
  }
}

// Error feedback loses nothing: the outputs of T steps are the inputs minus the memory (Karimireddy
// et al. 2019, proof of theorem II: x_t - e_t follows the uncompressed sums).
TEST(Reducer, FeedbackMakesTheSumsTelescope) {
  for (const char* codec : kCodecs) {
    for (const int world : {2, 4}) {
      const bool powersgd = std::string(codec).starts_with("powersgd");
      Ranks ranks(std::string(codec) + ",ef=on", unit_of(5000), world);
      std::vector<double> in(5000, 0), out(5000, 0);
      for (std::uint64_t step = 0; step < 12; ++step) {
        auto values = gradients(world, 5000, step);
        const auto sum = sum_of(values);
        ranks.step(values);
        for (std::size_t i = 0; i < in.size(); ++i)
          in[i] += sum[i], out[i] += static_cast<double>(values[0][i]);
      }
      for (int rank = 0; rank < world; ++rank) {
        const auto state = ranks[rank].state();
        ASSERT_GT(state.size(), powersgd ? 1u : 0u) << codec << " " << ranks[rank].exchange();
        const auto unsent = state[powersgd ? 1 : 0];
        for (std::size_t i = 0; i < in.size(); ++i) out[i] += static_cast<double>(unsent[i]);
        if (std::string(ranks[rank].exchange()) != "sharded") continue;
        const auto first = static_cast<std::size_t>(rank * shard_length(5000, world));
        if (state.size() < 2) continue;  // the shards of the last ranks are empty
        for (std::size_t i = 0; i < state[1].size(); ++i)
          out[first + i] += static_cast<double>(state[1][i]);
      }
      // The sum of 16-bit floats is rounded again during the all-reduce. This error is not fed
      // back, so it may grow with each of the 12 steps.
      const double tolerance = codec == std::string("bf16")  ? 12 * 0x1p-9
                               : codec == std::string("f16") ? 12 * 0x1p-12
                                                             : 1e-4;
      for (std::size_t i = 0; i < in.size(); ++i)
        ASSERT_NEAR(out[i], in[i], tolerance) << codec << ", world " << world << ", number " << i;
    }
  }
}

TEST(Reducer, FeedbackKeepsTheResidualBounded) {
  for (const char* codec : kCodecs) {
    Ranks ranks(std::string(codec) + ",ef=on", unit_of(3000), 2);
    double early = 0, late = 0;
    for (std::uint64_t step = 0; step < 400; ++step) {
      auto values = gradients(2, 3000, step);
      ranks.step(values);
      if (step != 199 && step != 399) continue;
      double& norm = step == 199 ? early : late;
      const auto state = ranks[0].state();
      for (float e : state[std::string(codec).starts_with("powersgd") ? 1 : 0])
        norm += static_cast<double>(e) * static_cast<double>(e);
    }
    EXPECT_LT(late, 2 * early + 1e-6) << codec;
  }
}

// Each step sends one of 10 numbers of a tensor. So no number waits longer than 10 steps, and its
// unsent value is the sum of the gradients since then.
TEST(Reducer, SendsEachNumberOnceInAnyTenSteps) {
  Ranks ranks("randomk:0.1,momentum=after", {.count = 4003}, 2);
  std::vector<int> last(4003, -1), times(4003, 0);
  for (int step = 0; step < 30; ++step) {
    std::vector<Floats> values(2, Floats(4003, 1.0f));
    ranks.step(values);
    for (std::size_t i = 0; i < last.size(); ++i) {
      if (values[0][i] == 0) continue;
      ASSERT_EQ(values[0][i], 2.0f * static_cast<float>(step - last[i]))
          << "number " << i << " has waited since step " << last[i];
      ASSERT_TRUE(last[i] < 0 || step - last[i] == 10) << i;
      last[i] = step;
      ++times[i];
    }
  }
  for (int sent : times) EXPECT_EQ(sent, 3);
}

// As in Wangni et al. 2018 for gradients whose tensors have equal norms: the share falls with the
// square root of the size, and is 1 where the formula exceeds 1. The total bytes are those of the
// share of all numbers.
TEST(Reducer, SendsSmallTensorsMoreOftenThanLargeOnes) {
  const Unit unit{
      .count = 421642,
      .matrices = {
          {0, 10, 128}, {1280, 128, 3136}, {402688, 64, 288}, {421120, 32, 9}, {421408, 234, 1}}};
  Ranks ranks("randomk:0.1,momentum=after", unit, 2);
  EXPECT_LE(ranks[0].bytes_sent(), 4 * 42165);
  EXPECT_GE(ranks[0].bytes_sent(), 4 * 37000);
  std::vector<int> sent(5, 0);
  constexpr int kSteps = 12;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Floats> values(2, Floats(421642, 1.0f));
    ranks.step(values);
    for (std::size_t tensor = 0; tensor < 5; ++tensor) {
      const auto& matrix = unit.matrices[tensor];
      for (std::int64_t i = 0; i < matrix.rows * matrix.columns; ++i) {
        sent[tensor] += values[0][static_cast<std::size_t>(matrix.first + i)] != 0 ? 1 : 0;
      }
    }
  }
  const auto share = [&](std::size_t tensor) {
    const auto& matrix = unit.matrices[tensor];
    return static_cast<double>(sent[tensor]) /
           static_cast<double>(kSteps * matrix.rows * matrix.columns);
  };
  for (const std::size_t small : {0u, 3u, 4u}) EXPECT_EQ(share(small), 1) << small;
  EXPECT_NEAR(share(2) / share(1), std::sqrt(401408.0 / 18432), 0.8);
}

// Small tensors are not compressed, for at most a quarter of the bytes, and no block has numbers of
// two tensors.
TEST(Reducer, SendsSignsTensorByTensor) {
  const Unit unit{.count = 43064, .matrices = {{0, 64, 1}, {64, 30, 100}, {3064, 40, 1000}}};
  for (const int world : {2, 3}) {
    Ranks ranks("sign:1024,momentum=after", unit, world);
    std::vector<Floats> values(static_cast<std::size_t>(world), Floats(43064, 0.001f));
    for (auto& one : values) {
      for (std::size_t i = 0; i < 64; ++i) one[i] = static_cast<float>(i);
      for (std::size_t i = 3064; i < 43064; ++i) one[i] = -1.0f;
    }
    const auto want = sum_of(values);
    ranks.step(values);
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(values[0][i], want[i], 1e-5 * std::fabs(want[i]))
          << "world " << world << ", " << i;
  }
}

// EF21 (Richtárik, Sokolov, Fatkhullin 2021, lemma 1 with a constant gradient): ||x - h||^2 shrinks
// by (1 - k / n) per step.
TEST(Reducer, DeltaReachesAConstantGradientGeometrically) {
  for (const auto& [spec, alpha] :
       {std::pair{"topk:0.05,delta", 0.05}, {"int4,delta", 0.9}, {"int8,delta", 0.99}}) {
    for (const int world : {2, 4}) {
      Ranks ranks(spec, unit_of(3000), world);
      const auto constant = gradients(world, 3000, 1);
      const auto want = sum_of(constant);
      double whole = 0;
      for (const auto& one : constant) {
        double squares = 0;
        for (float x : one) squares += static_cast<double>(x) * static_cast<double>(x);
        whole += std::sqrt(squares);
      }
      double error = 0;
      const int steps = world == 2 ? 60 : 120;  // sharded: the sums must converge too
      for (int step = 0; step < steps; ++step) {
        auto values = constant;
        ranks.step(values);
        error = 0;
        for (std::size_t i = 0; i < want.size(); ++i)
          error += std::pow(static_cast<double>(values[0][i]) - want[i], 2);
      }
      EXPECT_LE(std::sqrt(error), std::max(std::pow(1 - alpha, 30.0) * whole, 1e-4))
          << spec << " " << world;
    }
  }
}

// A rank's small number is lost in the rounded sum of codes beside a large one. When both are gone,
// so must be the result.
TEST(Reducer, DeltaKeepsNoErrorOfSumsOfSixteenBits) {
  for (const auto& [spec, small] : {std::pair{"bf16,delta", 0x1p-9f}, {"f16,delta", 0x1p-12f}}) {
    for (const int world : {2, 4}) {
      Ranks ranks(spec, unit_of(5000), world);
      std::vector<Floats> values;
      for (int cycle = 0; cycle < 64; ++cycle) {
        for (const auto& [of_first, of_second] :
             {std::pair{1.0f, small}, {0.0f, small}, {0.0f, 0.0f}}) {
          values.assign(static_cast<std::size_t>(world), Floats(5000, 0.0f));
          values[0].assign(5000, of_first);
          values[1].assign(5000, of_second);
          ranks.step(values);
        }
      }
      EXPECT_EQ(values[0], Floats(5000, 0.0f)) << spec << ", world " << world;
    }
  }
}

TEST(Reducer, DeltaDoesNotKeepNumbersThatAreNotFinite) {
  for (const char* codec : kCodecs) {
    for (const int world : {2, 4}) {
      Ranks ranks(std::string(codec) + ",delta", unit_of(3000), world);
      for (std::uint64_t step = 0; step < 3; ++step) {
        auto values = gradients(world, 3000, step);
        if (step == 1) {
          values[1][500] = std::numeric_limits<float>::quiet_NaN();
          values[1][1010] = std::numeric_limits<float>::infinity();
        }
        ranks.step(values);
        for (std::size_t i = 0; i < 3000 && step != 1; ++i)
          ASSERT_TRUE(std::isfinite(values[0][i])) << codec << ", world " << world << ", " << i;
      }
    }
  }
}

TEST(Reducer, ContinuesFromItsStateBitForBit) {
  for (const auto& spec : specs()) {
    for (const int world : {2, 4}) {
      Unit unit = unit_of(5000);
      unit.momentum = {0.9, true};
      Ranks first(spec, unit, world), second(spec, unit, world);
      for (std::uint64_t step = 0; step < 3; ++step) {
        auto values = gradients(world, 5000, step);
        first.step(values);
      }
      second.copy_state_from(first);
      for (std::uint64_t step = 3; step < 5; ++step) {
        auto a = gradients(world, 5000, step), b = a;
        first.step(a);
        second.step(b);
        EXPECT_EQ(a, b) << spec << ", world " << world;
      }
    }
  }
}

TEST(Reducer, HasACommonStateThatIsEqualOnAllRanks) {
  for (const auto& spec : specs()) {
    for (const int world : {2, 4}) {
      Ranks ranks(spec, unit_of(3000), world);
      for (std::uint64_t step = 0; step < 3; ++step) {
        auto values = gradients(world, 3000, step);
        ranks.step(values);
      }
      std::size_t numbers = 0;
      const auto first = ranks[0].common_state();
      for (const auto& part : first) numbers += part.size();
      EXPECT_EQ(numbers >= 3000, spec.ends_with(",delta")) << spec;
      EXPECT_EQ(numbers > 0, spec.ends_with(",delta") || spec.starts_with("powersgd")) << spec;
      for (int rank = 1; rank < world; ++rank) {
        const auto other = ranks[rank].common_state();
        ASSERT_EQ(other.size(), first.size());
        for (std::size_t i = 0; i < first.size(); ++i)
          EXPECT_TRUE(std::ranges::equal(other[i], first[i])) << spec << ", rank " << rank;
      }
    }
  }
}

TEST(Reducer, SendsTheBytesThatItReports) {
  for (const auto& spec : specs()) {
    for (int world = 2; world <= 4; ++world) {
      Ranks ranks(spec, unit_of(5000), world);
      auto values = gradients(world, 5000, 1);
      ranks.step(values);
      if (spec.starts_with("threshold")) {
        EXPECT_LE(ranks.sent(), ranks[0].bytes_sent()) << spec << " " << world;
      } else {
        EXPECT_NEAR(static_cast<double>(ranks.sent()), static_cast<double>(ranks[0].bytes_sent()),
                    2)
            << spec << " " << world;
      }
    }
  }
}

TEST(Reducer, ChoosesTheExchangeWithTheFewestBytes) {
  const auto exchange = [](const char* spec, std::int64_t count, int world) {
    Unit unit = unit_of(count);
    unit.world = world;
    return std::string(make_reducer(parse(spec), unit)->exchange());
  };
  EXPECT_EQ(exchange("bf16", 1 << 20, 8), "sum");
  EXPECT_EQ(exchange("randomk", 1 << 20, 8), "sum");
  EXPECT_EQ(exchange("randomk,delta", 1 << 20, 8), "sum");
  EXPECT_EQ(exchange("bf16,delta", 1 << 20, 2), "gather");  // the sum would be rounded again
  EXPECT_EQ(exchange("f16,delta", 1 << 20, 8), "sharded");
  EXPECT_EQ(exchange("int8", 1 << 20, 2), "gather");
  EXPECT_EQ(exchange("int8", 1 << 20, 4), "sharded");
  EXPECT_EQ(exchange("int8", 1 << 20, 64), "sharded");
  EXPECT_EQ(exchange("topk:0.01", 1 << 20, 4), "sharded");
  EXPECT_EQ(exchange("topk:0.5", 1 << 20, 2),
            "plain");  // half of the numbers with their positions: the same bytes
  EXPECT_EQ(exchange("int8", 10, 4), "gather");  // shards would be rounded up
  EXPECT_EQ(exchange("threshold:0.1", 1 << 20, 2), "gather");
  EXPECT_EQ(exchange("int8", 1 << 20, 1), "plain");
  EXPECT_EQ(exchange("powersgd:2", 3000, 2), "low rank");
  EXPECT_EQ(exchange("powersgd:64", 3000, 2), "plain");
  EXPECT_THROW(exchange("auto", 3000, 2), Error);
}

// A matrix of cosines: orthonormal columns, so that the singular values are those given.
Floats with_singular_values(std::int64_t rows, std::int64_t columns,
                            const std::vector<double>& sigma) {
  const auto cosine = [](std::int64_t i, std::size_t k, std::int64_t n) {
    return std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(n)) *
           std::cos(M_PI * (static_cast<double>(i) + 0.5) * static_cast<double>(k) /
                    static_cast<double>(n));
  };
  Floats matrix;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < sigma.size(); ++k)
        sum += sigma[k] * cosine(i, k, rows) * cosine(j, k, columns);
      matrix.push_back(static_cast<float>(sum));
    }
  }
  return matrix;
}

double distance(const Floats& a, const Floats& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum);
}

TEST(PowerSgd, FindsAMatrixOfItsRankInOneStep) {
  const auto matrix = with_singular_values(40, 30, {3, 1});
  Ranks ranks("powersgd:2,ef=off", {.count = 1200, .matrices = {{0, 40, 30}}}, 2);
  std::vector<Floats> values(2, matrix);
  for (float& x : values[1]) x *= 2;
  ranks.step(values);
  auto want = matrix;
  for (float& x : want) x *= 3;
  EXPECT_LT(distance(values[0], want), 1e-4);
}

// Vogels et al. 2019, section 4.2 (and Eckart & Young): warm starts lead to the best approximation
// of that rank.
TEST(PowerSgd, ReachesTheBestApproximationFromAWarmStart) {
  const auto matrix = with_singular_values(40, 30, {4, 2, 1, 0.5, 0.25});
  Ranks ranks("powersgd:2,ef=off", {.count = 1200, .matrices = {{0, 40, 30}}}, 2);
  const double best = std::sqrt(1 + 0.25 + 0.0625);
  double last = 0;
  for (int step = 0; step < 10; ++step) {
    std::vector<Floats> values(2, matrix);
    for (auto& one : values) {
      for (float& x : one) x *= 0.5f;
    }
    ranks.step(values);
    last = distance(values[0], matrix);
    EXPECT_GE(last, 0.999 * best);
  }
  EXPECT_LT(last, 1.001 * best);
}

TEST(PowerSgd, RecoversAfterZerosAndNan) {
  for (const char* memory : {",ef=on", ",ef=off", ",delta"}) {
    Ranks ranks(std::string("powersgd:2") + memory, unit_of(3000), 2);
    std::vector<Floats> zeros(2, Floats(3000, 0.0f));
    ranks.step(zeros);
    EXPECT_EQ(zeros[0], Floats(3000, 0.0f)) << memory;
    auto broken = gradients(2, 3000, 1);
    broken[1][500] = std::numeric_limits<float>::quiet_NaN();
    ranks.step(broken);
    EXPECT_TRUE(std::isnan(broken[0][500])) << memory;
    auto values = gradients(2, 3000, 2);
    ranks.step(values);
    double squares = 0;
    for (float x : values[0]) squares += static_cast<double>(x) * static_cast<double>(x);
    EXPECT_TRUE(std::isfinite(squares) && squares > 0) << memory;
  }
}

}  // namespace
}  // namespace weft::compress
