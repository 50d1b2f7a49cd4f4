#include "weft/kernels/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/kernels/internal/level.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kCounts[] = {0, 1, 7, 15, 16, 17, 33, 1000, 5003};
constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                            DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg,    ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kBitAnd, ReduceOp::kBitOr,   ReduceOp::kBitXor};

std::vector<const internal::Level*> levels() {
  std::vector<const internal::Level*> all = {&internal::kGeneric};
  for (const char* limit : {"avx2", ""}) {
    const auto& level = internal::choose_level(limit);
    if (&level != all.back()) all.push_back(&level);
  }
  return all;
}

// The definitions of the 16-bit formats, in double: sign, exponent bits, mantissa bits.
double decode(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// The format's value next to `value`, ties to the even mantissa, by search over the finite values (which are in the order of their bits).
std::uint16_t encode(double value, int exponent_bits) {
  const int infinity = ((1 << exponent_bits) - 1) << (15 - exponent_bits);
  int low = 0;
  int high = infinity;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (decode(static_cast<std::uint16_t>(middle), exponent_bits) <= std::fabs(value) ? low : high) = middle;
  }
  const double below = decode(static_cast<std::uint16_t>(low), exponent_bits);
  // Infinity counts as the value that would follow the largest.
  const double above = high == infinity ? below + (below - decode(static_cast<std::uint16_t>(low - 1), exponent_bits))
                                        : decode(static_cast<std::uint16_t>(high), exponent_bits);
  const double middle = below + (above - below) / 2;
  const bool up = std::fabs(value) > middle || (std::fabs(value) == middle && (low & 1));
  return static_cast<std::uint16_t>((up ? high : low) | (std::signbit(value) ? 0x8000 : 0));
}

int exponent_bits(DType type) { return type == DType::kF16 ? 5 : 8; }

double get(const std::byte* data, DType type, std::int64_t i) {
  const auto as = [&]<class T>(T value) {
    std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  };
  switch (type) {
    case DType::kF64: return as(double());
    case DType::kF32: return static_cast<double>(as(float()));
    case DType::kI64: return static_cast<double>(as(std::int64_t()));
    case DType::kI32: return as(std::int32_t());
    case DType::kI16: return as(std::int16_t());
    case DType::kI8: return as(std::int8_t());
    case DType::kU8:
    case DType::kBool: return as(std::uint8_t());
    default: return decode(as(std::uint16_t()), exponent_bits(type));
  }
}

void put(std::byte* data, DType type, std::int64_t i, double value) {
  const auto as = [&](auto typed) { std::memcpy(data + i * static_cast<std::int64_t>(sizeof(typed)), &typed, sizeof(typed)); };
  switch (type) {
    case DType::kF64: return as(value);
    case DType::kF32: return as(static_cast<float>(value));
    case DType::kI64: return as(static_cast<std::int64_t>(value));
    case DType::kI32: return as(static_cast<std::int32_t>(static_cast<std::int64_t>(value)));
    case DType::kI16: return as(static_cast<std::int16_t>(static_cast<std::int64_t>(value)));
    case DType::kI8: return as(static_cast<std::int8_t>(static_cast<std::int64_t>(value)));
    case DType::kU8:
    case DType::kBool: return as(static_cast<std::uint8_t>(static_cast<std::int64_t>(value)));
    default: return as(encode(value, exponent_bits(type)));
  }
}

// Small dyadic numbers: every sum of a few and every product of up to five is exact in float32, so that the reference has one answer.
double sample(DType type, int source, std::int64_t i) {
  const auto mixed = static_cast<std::int64_t>((static_cast<std::uint64_t>(i) * 7919 + static_cast<std::uint64_t>(source) * 104729) % 31);
  if (type == DType::kBool) return static_cast<double>(mixed % 2);
  if (type == DType::kU8) return static_cast<double>(mixed);
  return is_floating(type) ? static_cast<double>(mixed - 15) / 8 : static_cast<double>(mixed - 15);
}

double combine(DType type, ReduceOp op, double a, double b) {
  const auto x = static_cast<std::int64_t>(a);
  const auto y = static_cast<std::int64_t>(b);
  const bool truth = type == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return truth ? static_cast<double>(a != 0 || b != 0) : a + b;
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kBitAnd: return static_cast<double>(x & y);
    case ReduceOp::kBitOr: return static_cast<double>(x | y);
    default: return static_cast<double>(x ^ y);
  }
}

bool has(DType type, ReduceOp op) {
  const bool bits = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  return is_floating(type) ? !bits : op != ReduceOp::kAvg;
}

struct Arrays {
  // `shift` bytes past an aligned address.
  Arrays(int number, std::size_t bytes, std::size_t shift)
      : storage(static_cast<std::size_t>(number), std::vector<std::byte>(bytes + shift)) {
    for (auto& one : storage) pointers.push_back(one.data() + shift);
  }
  std::byte* operator[](int i) const { return static_cast<std::byte*>(pointers[static_cast<std::size_t>(i)]); }
  std::vector<std::vector<std::byte>> storage;
  std::vector<void*> pointers;
};

Arrays make_sources(DType type, int number, std::int64_t count, std::size_t shift) {
  Arrays sources(number, static_cast<std::size_t>(count) * size_of(type), shift);
  for (int s = 0; s < number; ++s) {
    for (std::int64_t i = 0; i < count; ++i) put(sources[s], type, i, sample(type, s, i));
  }
  return sources;
}

void expect_reduction(DType type, ReduceOp op, int num_sources, std::int64_t count) {
  const auto sources = make_sources(type, num_sources, count, 3);
  Arrays results(2, static_cast<std::size_t>(count) * size_of(type), 1);
  reduce(results.pointers.data(), 2, sources.pointers.data(), num_sources, {.dtype = type, .op = op, .count = count});
  std::vector<std::byte> expected(8);
  for (std::int64_t i = 0; i < count; ++i) {
    double want = get(sources[0], type, i);
    for (int s = 1; s < num_sources; ++s) want = combine(type, op, want, get(sources[s], type, i));
    if (op == ReduceOp::kAvg)
      want = type == DType::kF64 ? want / num_sources : static_cast<double>(static_cast<float>(want) / static_cast<float>(num_sources));
    put(expected.data(), type, 0, want);
    for (int d = 0; d < 2; ++d) {
      ASSERT_EQ(get(results[d], type, i), get(expected.data(), type, 0))
          << to_string(type) << " " << to_string(op) << " of " << num_sources << ", element " << i << " of " << count;
    }
  }
}

TEST(Reduce, EqualsTheScalarReferenceForEveryTypeAndOperation) {
  for (const DType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (!has(type, op)) continue;
      for (const std::int64_t count : kCounts) {
        if (count == 5003) continue;
        for (const int n : {1, 2, 3, 4, 5}) ASSERT_NO_FATAL_FAILURE(expect_reduction(type, op, n, count));
      }
      ASSERT_NO_FATAL_FAILURE(expect_reduction(type, op, 3, 5003));
    }
  }
}

TEST(Reduce, GivesTheSameBitsAtEveryLevel) {
  for (const DType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (!has(type, op) || type == DType::kBool) continue;
      const std::int64_t count = 1237;
      Arrays sources(5, static_cast<std::size_t>(count) * size_of(type), 2);
      std::uint64_t random = 88172645463325252u;  // Any bits, NaN and infinity among them (of one payload: which of two NaN survives is
      for (int s = 0; s < 5; ++s) {               // the compiler's choice).
        for (std::int64_t i = 0; i < count; ++i) {
          random = random * 6364136223846793005u + 1442695040888963407u;
          std::uint64_t bits = random ^ (random >> 29);
          std::memcpy(sources[s] + i * static_cast<std::int64_t>(size_of(type)), &bits, size_of(type));
          if (is_floating(type) && std::isnan(get(sources[s], type, i))) put(sources[s], type, i, 1.5);
        }
      }
      for (const int n : {2, 4, 5}) {
        std::vector<Arrays> results;
        for (const auto* level : levels()) {
          results.emplace_back(2, static_cast<std::size_t>(count) * size_of(type), 0);
          const ReduceArgs args{.dtype = type, .op = op, .count = count};
          level->reduce({results.back().pointers.data(), 2, sources.pointers.data(), n, &args, n == 5});
          ASSERT_EQ(results.back().storage, results.front().storage) << level->name << " " << to_string(type) << " " << to_string(op);
        }
      }
    }
  }
}

TEST(Reduce, CombinesAlongTheBalancedTree) {
  const auto tree = [](const std::vector<float>& v) {
    switch (v.size()) {
      case 3: return (v[0] + v[1]) + v[2];
      case 4: return (v[0] + v[1]) + (v[2] + v[3]);
      case 5: return ((v[0] + v[1]) + (v[2] + v[3])) + v[4];
      case 6: return ((v[0] + v[1]) + (v[2] + v[3])) + (v[4] + v[5]);
      default: return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6]);
    }
  };
  const std::vector<float> all = {1e8f, 3.0f, -1e8f, 5.0f, 7e7f, 1.0f, -7e7f};
  for (std::size_t n = 3; n <= all.size(); ++n) {
    const std::vector<float> values(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n));
    std::vector<const void*> sources;
    for (const float& value : values) sources.push_back(&value);
    float result = 0;
    void* destination = &result;
    reduce(&destination, 1, sources.data(), static_cast<int>(n), {.count = 1});
    EXPECT_EQ(result, tree(values)) << n;
  }
}

TEST(Reduce, WritesOverItsOwnSources) {
  for (const int n : {2, 3, 4}) {
    for (const std::int64_t count : kCounts) {
      auto arrays = make_sources(DType::kF32, n, count, 0);
      const auto before = arrays.storage;
      reduce(arrays.pointers.data(), n, arrays.pointers.data(), n, {.count = count});
      for (std::int64_t i = 0; i < count; ++i) {
        double want = 0;
        for (const auto& one : before) want += get(one.data(), DType::kF32, i);
        for (int d = 0; d < n; ++d) ASSERT_EQ(get(arrays[d], DType::kF32, i), want);
      }
    }
  }
}

TEST(Reduce, WeighsEachSourceAndScalesTheSum) {
  const double weights[] = {0.5, 2.0, -1.0, 4.0};
  for (const DType type : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int n : {1, 2, 3, 4}) {
      const auto sources = make_sources(type, n, 37, 0);
      Arrays result(1, 37 * size_of(type), 0);
      reduce(result.pointers.data(), 1, sources.pointers.data(), n, {.dtype = type, .count = 37, .scale = 0.25, .weights = weights});
      std::vector<std::byte> expected(8);
      for (std::int64_t i = 0; i < 37; ++i) {
        double want = 0;
        for (int s = 0; s < n; ++s) want += weights[s] * get(sources[s], type, i);
        put(expected.data(), type, 0, want * 0.25);
        ASSERT_EQ(get(result[0], type, i), get(expected.data(), type, 0)) << to_string(type) << " of " << n;
      }
    }
  }
}

TEST(Reduce, RoundsHalvesOnlyOnce) {
  // 2048 + 1 is a tie in float16 that goes back to 2048; added in float32, 2048 + 1 + 1 is 2050.
  const std::uint16_t big = 0x6800;
  const std::uint16_t one = 0x3c00;
  const void* sources[] = {&big, &one, &one};
  std::uint16_t result = 0;
  void* destination = &result;
  reduce(&destination, 1, sources, 3, {.dtype = DType::kF16, .count = 1});
  EXPECT_EQ(decode(result, 5), 2050.0);
}

TEST(Reduce, KeepsNanInMinimumAndMaximum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float number = 1.0f;
  float result = 0;
  void* destination = &result;
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const void* first[] = {&nan, &number};
    reduce(&destination, 1, first, 2, {.op = op, .count = 1});
    EXPECT_TRUE(std::isnan(result));
    const void* second[] = {&number, &nan};
    reduce(&destination, 1, second, 2, {.op = op, .count = 1});
    EXPECT_TRUE(std::isnan(result));
  }
}

TEST(Reduce, WritesLargeArraysAroundTheCachesWithoutHarmingTheirEnds) {
  const std::int64_t count = (std::int64_t{1} << 20) + 5;
  const auto sources = make_sources(DType::kF32, 2, count, 0);
  Arrays result(1, static_cast<std::size_t>(count) * 4 + 4, 12);
  std::memset(result[0] + count * 4, 0x5a, 4);
  reduce(result.pointers.data(), 1, sources.pointers.data(), 2, {.count = count});
  for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(get(result[0], DType::kF32, i), sample(DType::kF32, 0, i) + sample(DType::kF32, 1, i));
  EXPECT_EQ(static_cast<int>(result[0][count * 4]), 0x5a);
}

TEST(Reduce, RefusesWhatATypeDoesNotHave) {
  float value = 0;
  void* pointers[] = {&value};
  const auto code = [&](const ReduceArgs& args) {
    try {
      reduce(pointers, 1, pointers, 1, args);
    } catch (const Error& error) {
      return error.code();
    }
    return Errc::kInternal;
  };
  const double weight = 2.0;
  EXPECT_EQ(code({.dtype = DType::kI32, .op = ReduceOp::kAvg, .count = 1}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.dtype = DType::kF32, .op = ReduceOp::kBitXor, .count = 1}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.dtype = DType::kI32, .count = 1, .scale = 2.0}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.op = ReduceOp::kMax, .count = 1, .weights = &weight}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.count = -1}), Errc::kInvalidArgument);
}

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

TEST(Cast, RoundsToNearestEvenAtAndBesideEveryMidpoint) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const int infinity = type == DType::kF16 ? 0x7c00 : 0x7f80;
    std::vector<float> values;
    for (int bits = 0; bits < infinity - 1; ++bits) {
      const double below = decode(static_cast<std::uint16_t>(bits), exponent_bits(type));
      const double above = decode(static_cast<std::uint16_t>(bits + 1), exponent_bits(type));
      const auto middle = static_cast<float>((below + above) / 2);
      for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e38f), -middle}) values.push_back(value);
    }
    for (const float value : {65519.0f, 65520.0f, 1e30f, 3.4e38f, -65520.0f, 0.0f, -0.0f}) values.push_back(value);
    std::vector<std::uint16_t> want(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) want[i] = encode(static_cast<double>(values[i]), exponent_bits(type));
    for (const auto* level : levels()) {
      std::vector<std::uint16_t> got(values.size());
      level->cast(got.data(), type, values.data(), DType::kF32, static_cast<std::int64_t>(values.size()));
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(got[i], want[i]) << level->name << " " << to_string(type) << " " << values[i];
    }
  }
}

TEST(Cast, KeepsNanAndInfinity) {
  // Among them a NaN whose payload is in the bits that are cut off.
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

TEST(Cast, GoesBetweenTheHalvesAndCopiesTheSameType) {
  const std::uint16_t half = 0x3e00;  // 1.5
  std::uint16_t brain = 0;
  cast(&brain, DType::kBF16, &half, DType::kF16, 1);
  EXPECT_EQ(brain, 0x3fc0);
  std::uint16_t copy = 0;
  cast(&copy, DType::kF16, &half, DType::kF16, 1);
  EXPECT_EQ(copy, half);
  EXPECT_THROW(cast(&copy, DType::kF64, &half, DType::kF16, 1), Error);
}

TEST(SumOfSquares, IsTheSameAtEveryLevelAndNextToTheExactSum) {
  for (const std::int64_t count : kCounts) {
    std::vector<float> values(static_cast<std::size_t>(count) + 1);
    double want = 0;
    for (std::int64_t i = 1; i <= count; ++i) {
      const float value = std::sin(static_cast<float>(i));
      values[static_cast<std::size_t>(i)] = value;
      want += static_cast<double>(value) * static_cast<double>(value);
    }
    const double first = internal::kGeneric.sum_of_squares(values.data() + 1, count);
    EXPECT_NEAR(first, want, 1e-12 * want);
    for (const auto* level : levels()) EXPECT_EQ(level->sum_of_squares(values.data() + 1, count), first) << level->name;
  }
}

TEST(Scale, MultipliesInPlace) {
  for (const auto* level : levels()) {
    std::vector<float> values(1001, 3.0f);
    level->scale(values.data() + 1, 1000, 0.5f);
    EXPECT_EQ(values[0], 3.0f);
    for (std::size_t i = 1; i < values.size(); ++i) ASSERT_EQ(values[i], 1.5f) << level->name;
  }
}

TEST(Isa, IsLoweredOnRequest) {
  EXPECT_STREQ(internal::choose_level("generic").name, "generic");
  EXPECT_STRNE(internal::choose_level("avx2").name, "avx512");
}

}  // namespace
}  // namespace weft::kernels
