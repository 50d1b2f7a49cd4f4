#include "weft/compress/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::compress {
namespace {

using Floats = std::vector<float>;

// Like gradients: most numbers are small, few are large.
Floats gradient(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Floats values;
  for (std::size_t i = 0; i < count; ++i) {
    const float u = random.uniform_float() - 0.5f;
    values.push_back(u * u * u);
  }
  return values;
}

double squares(const Floats& values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

struct Trip {
  Floats decoded, residual;
  std::vector<std::byte> wire;
};
Trip trip(const Codec& codec, const Floats& values, const Draw& draw = {}) {
  Trip result;
  result.residual.resize(values.size());
  result.decoded.resize(values.size());
  codec.encode(values, draw, result.wire, result.residual.data());
  codec.add(result.wire, draw, result.decoded);
  return result;
}

constexpr const char* kAll[] = {"bf16",
                                "f16",
                                "int8",
                                "int4",
                                "sign",
                                "topk:0.03",
                                "randomk:0.03",
                                "threshold:0.05",
                                "int8,stochastic",
                                "int4:8,stochastic"};

TEST(Codec, KeepsUnsentValuesInTheResidual) {
  for (const char* spec : kAll) {
    const auto codec = make_codec(parse(std::string(spec) + ",ef=on"));
    for (const std::size_t count : {0u, 1u, 7u, 64u, 1000u, 3001u}) {
      const auto values = gradient(count, count);
      const auto result = trip(*codec, values);
      if (codec->fixed()) {
        EXPECT_EQ(static_cast<std::int64_t>(result.wire.size()),
                  codec->bytes(static_cast<std::int64_t>(count)))
            << spec << " " << count;
      } else {
        EXPECT_LE(static_cast<std::int64_t>(result.wire.size()),
                  codec->bytes(static_cast<std::int64_t>(count)))
            << spec << " " << count;
      }
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(result.residual[i], values[i] - result.decoded[i]) << spec << " " << i;
      auto in_place = values;
      std::vector<std::byte> wire;
      codec->encode(in_place, {}, wire, in_place.data());
      EXPECT_EQ(in_place, result.residual) << spec;
      EXPECT_EQ(wire, result.wire) << spec;
    }
  }
}

TEST(Codec, AddsToTheOutput) {
  for (const char* spec : kAll) {
    const auto codec = make_codec(parse(std::string(spec) + ",ef=on"));
    const auto result = trip(*codec, gradient(100, 1));
    Floats twice = result.decoded;
    codec->add(result.wire, {}, twice);
    for (std::size_t i = 0; i < twice.size(); ++i)
      ASSERT_EQ(twice[i], 2 * result.decoded[i]) << spec;
  }
}

TEST(Codec, SixteenBitFloatsRoundToNearest) {
  const auto values = gradient(5000, 2);
  const auto bf16 = trip(*make_codec(parse("bf16")), values),
             f16 = trip(*make_codec(parse("f16")), values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_LE(std::fabs(bf16.residual[i]), std::ldexp(std::fabs(values[i]), -8));
    ASSERT_LE(std::fabs(f16.residual[i]), std::max(std::ldexp(std::fabs(values[i]), -11),
                                                   0x1p-25f));  // subnormal in f16 below 2^-14
  }
}

TEST(Codec, BlocksStayWithinHalfAQuantum) {
  const auto values = gradient(5000, 3);
  for (const auto& [spec, most] : {std::pair{"int8:64", 127.0f}, {"int4:64", 7.0f}}) {
    const auto result = trip(*make_codec(parse(spec)), values);
    for (std::size_t first = 0; first < values.size(); first += 64) {
      const std::size_t end = std::min(values.size(), first + 64);
      float largest = 0;
      for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
      for (std::size_t i = first; i < end; ++i)
        ASSERT_LE(std::fabs(result.residual[i]), 0.5001f * largest / most) << spec;
    }
  }
}

// Alistarh et al. 2017, lemma 3.1: unbiased.
TEST(Codec, StochasticRoundingIsUnbiased) {
  const auto values = gradient(64, 4);
  for (const auto& [spec, most] :
       {std::pair{"int8:64,stochastic", 127.0f}, {"int4:64,stochastic", 7.0f}}) {
    const auto codec = make_codec(parse(spec));
    constexpr int kDraws = 3000;
    Floats sum(values.size());
    for (int step = 0; step < kDraws; ++step) {
      const auto decoded = trip(*codec, values, {.step = step, .unit = 3, .rank = 1}).decoded;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += decoded[i];
    }
    const float largest =
        std::fabs(*std::max_element(values.begin(), values.end(),
                                    [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    for (std::size_t i = 0; i < sum.size(); ++i)
      EXPECT_NEAR(sum[i] / kDraws, values[i], 5 * 0.5f * largest / most / std::sqrt(kDraws))
          << spec;
  }
}

// Karimireddy et al. 2019: scaled signs of a block keep exactly ||x||_1^2 / (n ||x||_2^2) of its
// squared norm.
TEST(Codec, SignsKeepTheirShareOfTheNorm) {
  const auto values = gradient(1024, 5);
  const auto result = trip(*make_codec(parse("sign:1024")), values);
  double magnitudes = 0;
  for (float value : values) magnitudes += std::fabs(static_cast<double>(value));
  const double kept = magnitudes * magnitudes / (1024 * squares(values));
  EXPECT_NEAR(squares(result.residual) / squares(values), 1 - kept, 1e-5);
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(std::signbit(result.decoded[i]), std::signbit(values[i]));
}

// Stich et al. 2018, lemma A.1: ||x - C(x)||^2 <= (1 - k / n) ||x||^2.
TEST(Codec, TopKSendsTheLargestExactly) {
  for (const double share : {0.001, 0.01, 0.1, 0.5}) {
    for (const std::size_t count : {1u, 100u, 5000u}) {
      auto values = gradient(count, count + 6);
      for (std::size_t i = 0; i < count / 3; ++i)
        values[i] = values[count / 3];  // equal values, also at the border
      const auto result = trip(*make_codec({.kind = Kind::kTopK, .amount = share}), values);
      const auto k = static_cast<std::size_t>(std::ceil(share * static_cast<double>(count)));
      Floats sorted;
      for (float value : values) sorted.push_back(std::fabs(value));
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      Floats sent;
      for (std::size_t i = 0; i < count; ++i) {
        if (result.decoded[i] != 0) sent.push_back(std::fabs(values[i]));
      }
      std::sort(sent.begin(), sent.end(), std::greater<>());
      sorted.resize(k);
      ASSERT_EQ(sent, sorted) << share << " of " << count;
      EXPECT_LE(
          squares(result.residual),
          (1 - static_cast<double>(k) / static_cast<double>(count)) * squares(values) + 1e-12);
    }
  }
}

TEST(Codec, ThresholdSendsLargeValuesButAtMostHalf) {
  const auto values = gradient(4000, 7);
  const auto result = trip(*make_codec(parse("threshold:0.05")), values);
  std::size_t sent = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(result.decoded[i], std::fabs(values[i]) >= 0.05f ? values[i] : 0.0f);
    sent += result.decoded[i] != 0 ? 1 : 0;
  }
  EXPECT_EQ(result.wire.size(), 4 + 8 * sent);
  EXPECT_EQ(trip(*make_codec(parse("threshold:1e-20")), values).wire.size(),
            4 + 8 * values.size() / 2);
}

TEST(Codec, ThresholdSendsABufferOfOneNumber) {
  const auto codec = make_codec(parse("threshold:0.1"));
  const auto result = trip(*codec, Floats{5});
  EXPECT_EQ(result.decoded, Floats{5});
  EXPECT_LE(static_cast<std::int64_t>(result.wire.size()), codec->bytes(1));
  EXPECT_TRUE(std::isnan(trip(*codec, Floats{std::nanf("")}).decoded[0]));
}

// Stich et al. 2018, lemma A.1, in expectation with k / n = 1 / 20; scaled, the expectation is the
// gradient.
TEST(Codec, RandomKKeepsItsShareInExpectation) {
  const auto values = gradient(410, 8);  // the last run is half a run
  const auto plain = make_codec(parse("randomk:0.05,ef=on")),
             scaled = make_codec(parse("randomk:0.05,ef=off"));
  constexpr int kDraws = 20000;
  std::vector<double> sum(values.size(), 0);
  double error = 0;
  for (int step = 0; step < kDraws; ++step) {
    error += squares(trip(*plain, values, {.step = step}).residual);
    const auto decoded = trip(*scaled, values, {.step = step}).decoded;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(decoded[i]);
  }
  EXPECT_NEAR(error / kDraws / squares(values), 1 - 0.05, 0.002);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const double deviation = std::fabs(static_cast<double>(values[i])) * std::sqrt(19.0 / kDraws);
    EXPECT_NEAR(sum[i] / kDraws, values[i], 5 * deviation + 1e-9);
  }
}

TEST(Codec, RandomKDrawsTheSameOnAllRanksAndDiffersInEachStep) {
  const auto codec = make_codec(parse("randomk:0.1"));
  const auto values = gradient(1000, 9);
  const auto first = trip(*codec, values, {.step = 1, .rank = 0}).decoded;
  EXPECT_EQ(trip(*codec, values, {.step = 1, .rank = 3}).decoded, first);
  EXPECT_NE(trip(*codec, values, {.step = 2, .rank = 0}).decoded, first);
  EXPECT_NE(trip(*codec, values, {.seed = 2, .step = 1}).decoded, first);
}

TEST(Codec, ShowsInfinityAndNanWithoutKeepingThem) {
  for (const char* spec : kAll) {
    const auto codec = make_codec(parse(std::string(spec) + ",ef=on"));
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Floats one(2000, 0.0f);
      one[1000] = bad;
      for (const Floats& values : {one, Floats(2000, bad)}) {
        const auto result = trip(*codec, values);
        EXPECT_TRUE(std::any_of(result.decoded.begin(), result.decoded.end(), [](float value) {
          return !std::isfinite(value);
        })) << spec;
        for (float left : result.residual) ASSERT_TRUE(std::isfinite(left)) << spec;
      }
    }
  }
}

TEST(Codec, RejectsAnInvalidEncoding) {
  Floats values(100);
  for (const char* spec : kAll) {
    const auto codec = make_codec(parse(spec));
    EXPECT_THROW(codec->add({}, {}, values), Error) << spec;
  }
  const auto codec = make_codec(parse("topk"));
  std::vector<std::byte> wire;
  Floats longer(1000);
  longer[900] = 1;
  codec->encode(longer, {}, wire, nullptr);
  EXPECT_THROW(codec->add(wire, {}, values), Error) << "a place beyond the end";
  wire[3] = std::byte{0x7f};
  EXPECT_THROW(codec->add(wire, {}, values), Error) << "more numbers than bytes";
}

TEST(Codec, RejectsKindsThatDoNotEncodeSingleNumbers) {
  for (const char* spec : {"none", "powersgd", "auto"})
    EXPECT_THROW(make_codec(parse(spec)), Error) << spec;
}

}  // namespace
}  // namespace weft::compress
