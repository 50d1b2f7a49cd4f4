#include "weft/kernels/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/kernels/testing/half_reference.h"

namespace weft::kernels {
namespace reduce_test {

using internal::decode;
using internal::encode;
using internal::exponent_bits;
using internal::levels;

constexpr std::int64_t kCounts[] = {0, 1, 7, 15, 16, 17, 33, 1000, 5003};
constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                            DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,   ReduceOp::kAvg,   ReduceOp::kProduct,
                             ReduceOp::kMin,   ReduceOp::kMax,   ReduceOp::kBitAnd,
                             ReduceOp::kBitOr, ReduceOp::kBitXor};

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
  const auto as = [&](auto typed) {
    std::memcpy(data + i * static_cast<std::int64_t>(sizeof(typed)), &typed, sizeof(typed));
  };
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

// Small dyadic numbers. Sums of a few and products of up to five of them are exact in float32, so
// the reference has only one correct result.
double sample(DType type, int source, std::int64_t i) {
  const auto mixed = static_cast<std::int64_t>(
      (static_cast<std::uint64_t>(i) * 7919 + static_cast<std::uint64_t>(source) * 104729) % 31);
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
  // Each array starts `shift` bytes past an aligned address.
  Arrays(int number, std::size_t bytes, std::size_t shift)
      : storage(static_cast<std::size_t>(number), std::vector<std::byte>(bytes + shift)) {
    for (auto& one : storage) pointers.push_back(one.data() + shift);
  }
  std::byte* operator[](int i) const {
    return static_cast<std::byte*>(pointers[static_cast<std::size_t>(i)]);
  }
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
  reduce(results.pointers.data(), 2, sources.pointers.data(), num_sources,
         {.dtype = type, .op = op, .count = count});
  std::vector<std::byte> expected(8);
  for (std::int64_t i = 0; i < count; ++i) {
    double want = get(sources[0], type, i);
    for (int s = 1; s < num_sources; ++s) want = combine(type, op, want, get(sources[s], type, i));
    if (op == ReduceOp::kAvg)
      want = type == DType::kF64
                 ? want / num_sources
                 : static_cast<double>(static_cast<float>(want) / static_cast<float>(num_sources));
    put(expected.data(), type, 0, want);
    for (int d = 0; d < 2; ++d) {
      ASSERT_EQ(get(results[d], type, i), get(expected.data(), type, 0))
          << to_string(type) << " " << to_string(op) << " of " << num_sources << ", element " << i
          << " of " << count;
    }
  }
}

TEST(Reduce, EqualsTheScalarReferenceForEveryTypeAndOperation) {
  for (const DType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (!has(type, op)) continue;
      for (const std::int64_t count : kCounts) {
        if (count == 5003) continue;
        for (const int n : {1, 2, 3, 4, 5})
          ASSERT_NO_FATAL_FAILURE(expect_reduction(type, op, n, count));
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
      // Random bits, including infinity and NaN. All NaN have the same payload, because the
      // compiler chooses which of two NaN survives.
      std::uint64_t random = 88172645463325252u;
      for (int s = 0; s < 5; ++s) {
        for (std::int64_t i = 0; i < count; ++i) {
          random = random * 6364136223846793005u + 1442695040888963407u;
          std::uint64_t bits = random ^ (random >> 29);
          std::memcpy(sources[s] + i * static_cast<std::int64_t>(size_of(type)), &bits,
                      size_of(type));
          if (is_floating(type) && std::isnan(get(sources[s], type, i)))
            put(sources[s], type, i, 1.5);
        }
      }
      for (const int n : {2, 4, 5}) {
        std::vector<Arrays> results;
        for (const auto* level : levels()) {
          results.emplace_back(2, static_cast<std::size_t>(count) * size_of(type), 0);
          const ReduceArgs args{.dtype = type, .op = op, .count = count};
          level->reduce(
              {results.back().pointers.data(), 2, sources.pointers.data(), n, &args, n == 5});
          ASSERT_EQ(results.back().storage, results.front().storage)
              << level->name << " " << to_string(type) << " " << to_string(op);
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

TEST(Reduce, CanWriteItsResultOverItsSources) {
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
      reduce(result.pointers.data(), 1, sources.pointers.data(), n,
             {.dtype = type, .count = 37, .scale = 0.25, .weights = weights});
      std::vector<std::byte> expected(8);
      for (std::int64_t i = 0; i < 37; ++i) {
        double want = 0;
        for (int s = 0; s < n; ++s) want += weights[s] * get(sources[s], type, i);
        put(expected.data(), type, 0, want * 0.25);
        ASSERT_EQ(get(result[0], type, i), get(expected.data(), type, 0))
            << to_string(type) << " of " << n;
      }
    }
  }
}

TEST(Reduce, AveragesByADivisionByTheGivenNumber) {
  // 5 / 3 and 5 times the rounded 1 / 3 are different float32.
  const float five = 5.0f;
  const void* source = &five;
  float result = 0;
  void* destination = &result;
  reduce(&destination, 1, &source, 1, {.op = ReduceOp::kAvg, .count = 1, .divisor = 3});
  EXPECT_EQ(result, 5.0f / 3.0f);
  EXPECT_NE(result, 5.0f * (1.0f / 3.0f));
}

TEST(Reduce, RoundsHalvesOnlyOnce) {
  // In float16, 2048 + 1 is a tie that rounds to 2048. In float32, 2048 + 1 + 1 is 2050.
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

TEST(Reduce, WritesLargeArraysAndTheirEndsCorrectlyWithNonTemporalStores) {
  const std::int64_t count = (std::int64_t{1} << 20) + 5;
  const auto sources = make_sources(DType::kF32, 2, count, 0);
  Arrays result(1, static_cast<std::size_t>(count) * 4 + 4, 12);
  std::memset(result[0] + count * 4, 0x5a, 4);
  reduce(result.pointers.data(), 1, sources.pointers.data(), 2, {.count = count});
  for (std::int64_t i = 0; i < count; ++i)
    ASSERT_EQ(get(result[0], DType::kF32, i),
              sample(DType::kF32, 0, i) + sample(DType::kF32, 1, i));
  EXPECT_EQ(static_cast<int>(result[0][count * 4]), 0x5a);
}

TEST(Reduce, RefusesOperationsThatATypeDoesNotSupport) {
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
  EXPECT_EQ(code({.dtype = DType::kF32, .op = ReduceOp::kBitXor, .count = 1}),
            Errc::kInvalidArgument);
  EXPECT_EQ(code({.dtype = DType::kI32, .count = 1, .scale = 2.0}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.op = ReduceOp::kMax, .count = 1, .weights = &weight}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.count = -1}), Errc::kInvalidArgument);
}

TEST(StreamCopy, CopiesExactlyTheBytesBetweenAnyAddresses) {
  std::vector<unsigned char> source(700), expected(700), to(700);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7 + 1);
  for (const auto* level : levels()) {
    for (const std::size_t bytes : {0, 1, 63, 64, 65, 127, 128, 500}) {
      for (const std::size_t offset : {0, 1, 33, 64}) {
        std::fill(to.begin(), to.end(), 0xee);
        expected = to;
        std::copy_n(source.begin() + 5, bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(offset));
        level->stream_copy(to.data() + offset, source.data() + 5, static_cast<std::int64_t>(bytes));
        ASSERT_EQ(to, expected) << level->name << ": " << bytes << " bytes to " << offset;
      }
    }
  }
  to = source;
  stream_copy(nullptr, nullptr, 0);
  stream_copy(to.data(), source.data() + 1, 600);
  EXPECT_TRUE(std::equal(to.begin(), to.begin() + 600, source.begin() + 1));
}

TEST(SumOfSquares, IsTheSameAtEveryLevelAndCloseToTheExactSum) {
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
    for (const auto* level : levels())
      EXPECT_EQ(level->sum_of_squares(values.data() + 1, count), first) << level->name;
  }
}

TEST(IsWithin, FindsOneNumberBeyondTheLimitAtEveryPlace) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t count : kCounts) {
    if (count > 5000) continue;
    std::vector<float> values(static_cast<std::size_t>(count) + 2, 1e30f);
    values.front() = values.back() = nan;  // outside
    for (const auto* level : levels()) {
      float* const first = values.data() + 1;
      EXPECT_TRUE(level->is_within(first, count, 1e30f)) << level->name;
      for (std::int64_t at = 0; at < count; at += at < 200 ? 1 : 97) {
        for (const float beyond : {1.00001e30f, -1.00001e30f, infinity, -infinity, nan, -nan}) {
          first[at] = beyond;
          ASSERT_FALSE(level->is_within(first, count, 1e30f)) << level->name << " " << at;
        }
        first[at] = at % 2 == 0 ? -1e30f : 0.0f;
      }
      std::fill(first, first + count, 1e30f);
    }
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

TEST(Isa, CanBeLowered) {
  EXPECT_STREQ(internal::choose_level("generic").name, "generic");
  EXPECT_STRNE(internal::choose_level("avx2").name, "avx512");
}

}  // namespace reduce_test
}  // namespace weft::kernels
