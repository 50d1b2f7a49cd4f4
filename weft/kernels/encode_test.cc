#include "weft/kernels/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/kernels/testing/half_reference.h"

namespace weft::kernels {
namespace encode_test {

using internal::levels;

constexpr std::int64_t kCounts[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 129, 1000, 4099};

std::vector<float> noise(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back((random.uniform_float() - 0.5f) * std::exp2(6 * random.uniform_float()));
  return values;
}

struct Encoded {
  std::vector<float> scales, residual, decoded;
  std::vector<std::uint8_t> codes;
  bool operator==(const Encoded&) const = default;
};

Encoded encode(const internal::Level& level, const std::vector<float>& values, std::int64_t block,
               int bits, std::uint32_t key = 0) {
  const auto count = static_cast<std::int64_t>(values.size());
  Encoded result;
  result.scales.resize(static_cast<std::size_t>(scales_of(count, block)));
  result.codes.resize(static_cast<std::size_t>(codes_of(count, block, bits)));
  result.residual.resize(values.size());
  result.decoded.resize(values.size());
  level.quantize({values.data(), count, block, bits, result.scales.data(), result.codes.data(),
                  result.residual.data(), key != 0, key});
  level.dequantize_add({result.scales.data(), result.codes.data(), count, block, bits},
                       result.decoded.data());
  return result;
}

TEST(Quantize, StaysWithinHalfAQuantumOfEveryNumber) {
  for (const int bits : {8, 4}) {
    const float most = bits == 8 ? 127.0f : 7.0f;
    for (const std::int64_t count : kCounts) {
      const auto values = noise(count, 1);
      const auto result = encode(internal::level(), values, 64, bits);
      for (std::size_t i = 0; i < values.size(); ++i) {
        float largest = 0;
        for (std::size_t j = i / 64 * 64; j < std::min(values.size(), i / 64 * 64 + 64); ++j)
          largest = std::max(largest, std::fabs(values[j]));
        ASSERT_FLOAT_EQ(result.scales[i / 64], largest / most);
        ASSERT_LE(std::fabs(values[i] - result.decoded[i]), 0.5001f * largest / most)
            << bits << " bits, number " << i << " of " << count;
        ASSERT_EQ(result.residual[i], values[i] - result.decoded[i]);
      }
    }
  }
}

TEST(Quantize, SendsSignsWithTheMeanMagnitudeOfTheBlock) {
  for (const std::int64_t count : kCounts) {
    const auto values = noise(count, 2);
    const auto result = encode(internal::level(), values, 64, 1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      double sum = 0;
      const std::size_t first = i / 64 * 64, end = std::min(values.size(), first + 64);
      for (std::size_t j = first; j < end; ++j) sum += std::fabs(static_cast<double>(values[j]));
      ASSERT_NEAR(result.decoded[i],
                  std::copysign(sum / static_cast<double>(end - first), values[i]), 1e-5)
          << i << " of " << count;
      ASSERT_EQ(result.residual[i], values[i] - result.decoded[i]);
    }
  }
}

TEST(Quantize, GivesTheSameBitsAtEveryInstructionSet) {
  for (const int bits : {8, 4, 1}) {
    for (const std::uint32_t key : {0u, 77u}) {
      if (bits == 1 && key != 0) continue;
      for (const std::int64_t count : kCounts) {
        const auto values = noise(count, 3);
        const auto first = encode(internal::kGeneric, values, 64, bits, key);
        for (const auto* level : levels())
          EXPECT_TRUE(encode(*level, values, 64, bits, key) == first)
              << level->name << " " << count;
      }
    }
  }
}

TEST(Quantize, CanStoreTheResidualInPlaceOfTheValues) {
  for (const int bits : {8, 4, 1}) {
    auto values = noise(1000, 4);
    auto result = encode(internal::level(), values, 64, bits);
    quantize(
        {values.data(), 1000, 64, bits, result.scales.data(), result.codes.data(), values.data()});
    EXPECT_EQ(values, result.residual);
  }
}

// QSGD (Alistarh et al. 2017), lemma 3.1: stochastic rounding is unbiased. The expectation of a
// rounded number is the number.
TEST(Quantize, RoundsAtRandomWithoutBias) {
  for (const int bits : {8, 4}) {
    const auto values = noise(64, 5);
    constexpr int kDraws = 4000;
    std::vector<double> sums(values.size(), 0);
    float quantum = 0;
    for (std::uint32_t key = 1; key <= kDraws; ++key) {
      const auto result = encode(internal::level(), values, 64, bits, key * 2654435761u | 1u);
      quantum = result.scales[0];
      for (std::size_t i = 0; i < values.size(); ++i) {
        sums[i] += static_cast<double>(result.decoded[i]);
        ASSERT_LT(std::fabs(values[i] - result.decoded[i]), 1.001f * quantum);
      }
    }
    // The standard deviation of a draw is at most half a quantum. The bound is five of the mean's.
    const double bound = 5 * 0.5 * static_cast<double>(quantum) / std::sqrt(kDraws);
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(sums[i] / kDraws, values[i], bound) << bits << " bits, number " << i;
  }
}

TEST(Quantize, RoundsNoZeroAtRandom) {
  constexpr std::int64_t kBlock = 64, kBlocks = (1 << 20) / kBlock;
  std::vector<float> values(kBlock * kBlocks, 0.0f);
  for (std::size_t i = 0; i < values.size(); i += kBlock) values[i] = 1;
  for (const int bits : {8, 4}) {
    const auto result = encode(internal::level(), values, kBlock, bits, 7);
    const auto zeros = std::count(result.decoded.begin(), result.decoded.end(), 0.0f);
    EXPECT_EQ(zeros, (kBlock - 1) * kBlocks) << bits << " bits";
  }
}

TEST(Quantize, KeepsInfinityAndNanAndHandlesZerosAndTinyNumbers) {
  for (const int bits : {8, 4, 1}) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> values(128, 1.0f);
      values[70] = bad;
      const auto result = encode(internal::level(), values, 64, bits);
      EXPECT_FLOAT_EQ(result.decoded[0], 1.0f);
      EXPECT_TRUE(std::isnan(result.decoded[70]));
      for (float left : result.residual) EXPECT_TRUE(std::isfinite(left));
    }
    const auto zeros = encode(internal::level(), std::vector<float>(70, 0.0f), 64, bits);
    EXPECT_EQ(zeros.decoded, std::vector<float>(70, 0.0f));
    const auto tiny = encode(internal::level(), std::vector<float>(70, 1e-40f), 64, bits);
    EXPECT_EQ(tiny.residual, std::vector<float>(70, 1e-40f));
  }
}

TEST(Quantize, RefusesUnsupportedOptions) {
  EXPECT_THROW(quantize({.count = 8, .block = 12}), Error);
  EXPECT_THROW(quantize({.count = 8, .block = 8, .bits = 2}), Error);
  EXPECT_THROW(quantize({.count = 8, .block = 8, .bits = 1, .stochastic = true}), Error);
}

TEST(LowRank, MatchesTheDefinitionAndGivesTheSameBitsAtEveryInstructionSet) {
  const LowRankArgs args{7, 37, 3};
  const auto matrix = noise(7 * 37, 6), right = noise(3 * 37, 7), left = noise(3 * 7, 8);
  std::vector<float> first_left, first_right, first_sum;
  for (const auto* level : levels()) {
    std::vector<float> l(21), r(111), sum = matrix;
    level->multiply_right(args, matrix.data(), right.data(), l.data());
    level->multiply_left(args, matrix.data(), left.data(), r.data());
    level->add_low_rank(args, {left.data(), right.data(), -2.0f}, sum.data());
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t i = 0; i < 7; ++i) {
        double want = 0;
        for (std::size_t j = 0; j < 37; ++j)
          want += static_cast<double>(matrix[i * 37 + j]) * static_cast<double>(right[k * 37 + j]);
        EXPECT_NEAR(l[k * 7 + i], want, 2e-3);
      }
      for (std::size_t j = 0; j < 37; ++j) {
        double want = 0;
        for (std::size_t i = 0; i < 7; ++i)
          want += static_cast<double>(matrix[i * 37 + j]) * static_cast<double>(left[k * 7 + i]);
        EXPECT_NEAR(r[k * 37 + j], want, 2e-3);
      }
    }
    for (std::size_t i = 0; i < 7; ++i) {
      for (std::size_t j = 0; j < 37; ++j) {
        double want = matrix[i * 37 + j];
        for (std::size_t k = 0; k < 3; ++k)
          want -=
              2.0 * static_cast<double>(left[k * 7 + i]) * static_cast<double>(right[k * 37 + j]);
        EXPECT_NEAR(sum[i * 37 + j], want, 2e-3);
      }
    }
    if (first_left.empty()) first_left = l, first_right = r, first_sum = sum;
    EXPECT_EQ(l, first_left) << level->name;
    EXPECT_EQ(r, first_right) << level->name;
    EXPECT_EQ(sum, first_sum) << level->name;
  }
}

}  // namespace encode_test
}  // namespace weft::kernels
