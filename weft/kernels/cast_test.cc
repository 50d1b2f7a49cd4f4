#include <gtest/gtest.h>

#include <bit>

#include "weft/base/error.h"
#include "weft/kernels/reduce.h"
#include "weft/kernels/testing/half_reference.h"

namespace weft::kernels {
namespace cast_test {

using internal::decode;
using internal::encode;
using internal::exponent_bits;
using internal::levels;

TEST(Cast, DecodesEveryHalf) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    for (const auto* level : levels()) {
      std::vector<float> wide(all.size());
      level->cast(wide.data(), DType::kF32, all.data(), type, 65536);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const double want = decode(all[i], exponent_bits(type));
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(wide[i])) << level->name << " " << i;
        } else {
          ASSERT_EQ(static_cast<double>(wide[i]), want) << level->name << " " << i;
          ASSERT_EQ(std::signbit(wide[i]), (i & 0x8000) != 0);
        }
      }
    }
  }
}

TEST(Cast, RoundsToNearestEvenAtAndNearEveryMidpoint) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const int infinity = type == DType::kF16 ? 0x7c00 : 0x7f80;
    std::vector<float> values;
    for (int bits = 0; bits < infinity - 1; ++bits) {
      const double below = decode(static_cast<std::uint16_t>(bits), exponent_bits(type));
      const double above = decode(static_cast<std::uint16_t>(bits + 1), exponent_bits(type));
      const auto middle = static_cast<float>((below + above) / 2);
      for (const float value :
           {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e38f), -middle})
        values.push_back(value);
    }
    for (const float value : {65519.0f, 65520.0f, 1e30f, 3.4e38f, -65520.0f, 0.0f, -0.0f})
      values.push_back(value);
    std::vector<std::uint16_t> want(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      want[i] = encode(static_cast<double>(values[i]), exponent_bits(type));
    for (const auto* level : levels()) {
      std::vector<std::uint16_t> got(values.size());
      level->cast(got.data(), type, values.data(), DType::kF32,
                  static_cast<std::int64_t>(values.size()));
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(got[i], want[i]) << level->name << " " << to_string(type) << " " << values[i];
    }
  }
}

TEST(Cast, KeepsNanAndInfinity) {
  // Includes a NaN with all of its payload in the truncated bits.
  for (const auto* level : levels()) {
    for (const DType type : {DType::kF16, DType::kBF16}) {
      std::vector<float> values(33, std::bit_cast<float>(0x7f800001u));
      values[0] = std::numeric_limits<float>::infinity();
      std::vector<std::uint16_t> narrow(33);
      level->cast(narrow.data(), type, values.data(), DType::kF32, 33);
      EXPECT_TRUE(std::isinf(decode(narrow[0], exponent_bits(type))));
      for (std::size_t i = 1; i < 33; ++i) {
        ASSERT_TRUE(std::isnan(decode(narrow[i], exponent_bits(type)))) << level->name;
        ASSERT_EQ(narrow[i], narrow[1]) << level->name << ": the vector and the rest must agree";
      }
    }
  }
}

TEST(Cast, ConvertsBetweenTheHalvesAndCopiesTheSameType) {
  const std::uint16_t half = 0x3e00;  // 1.5
  std::uint16_t brain = 0;
  cast(&brain, DType::kBF16, &half, DType::kF16, 1);
  EXPECT_EQ(brain, 0x3fc0);
  std::uint16_t copy = 0;
  cast(&copy, DType::kF16, &half, DType::kF16, 1);
  EXPECT_EQ(copy, half);
  EXPECT_THROW(cast(&copy, DType::kF64, &half, DType::kF16, 1), Error);
}

}  // namespace cast_test
}  // namespace weft::kernels
