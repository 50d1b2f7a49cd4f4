// The collectives over MPI, in the program of ranks_main.cc.
#include "weft/net/mpi/testing/ranks.h"

namespace weft::net::mpi {
namespace {

// Collectives. Values are small whole numbers, whose sums are exact in every type.
constexpr DType type_of(double) { return DType::kF64; }
constexpr DType type_of(float) { return DType::kF32; }
constexpr DType type_of(std::int64_t) { return DType::kI64; }
constexpr DType type_of(std::int32_t) { return DType::kI32; }
constexpr DType type_of(std::int16_t) { return DType::kI16; }
constexpr DType type_of(std::int8_t) { return DType::kI8; }
constexpr DType type_of(std::uint8_t) { return DType::kU8; }

template <class T>
class MpiCollectives : public MpiContract {
 protected:
  static constexpr std::size_t kCount = 1003;  // not a multiple of the number of ranks

  static T value(int rank, std::size_t i) {
    return static_cast<T>((static_cast<std::size_t>(rank) * 3 + i) % 5 + 1);
  }
  static std::vector<T> values(int rank, std::size_t count) {
    std::vector<T> all(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, i);
    return all;
  }
  template <class F>
  static std::vector<T> reduced(std::size_t count, const F& combine) {
    auto all = values(0, count);
    for (int rank = 1; rank < MpiContract::kWorld; ++rank) {
      for (std::size_t i = 0; i < count; ++i)
        all[i] = static_cast<T>(combine(all[i], value(rank, i)));
    }
    return all;
  }
  static DirectArgs args(const void* input, void* output, std::size_t count) {
    return {.input = input,
            .output = output,
            .count = static_cast<std::int64_t>(count),
            .dtype = type_of(T{}),
            .timeout = 20s};
  }
  static T sum(T a, T b) { return static_cast<T>(a + b); }
};

using Types = testing::Types<double, float, std::int64_t, std::int32_t, std::int16_t, std::int8_t,
                             std::uint8_t>;
TYPED_TEST_SUITE(MpiCollectives, Types);

TYPED_TEST(MpiCollectives, ReduceWithEachOperation) {
  using T = TypeParam;
  const std::size_t n = this->kCount;
  const auto check = [&](ReduceOp op, const std::vector<T>& expected) {
    const auto in = this->values(this->rank_, n);
    auto out = std::vector<T>(n);
    auto call = this->args(in.data(), out.data(), n);
    call.op = op;
    this->group_->run(Collective::kAllReduce, call);
    EXPECT_EQ(out, expected) << to_string(op);
    auto place = in;
    call.input = call.output = place.data();
    this->group_->run(Collective::kAllReduce, call);
    EXPECT_EQ(place, expected) << to_string(op) << " in place";
  };
  check(ReduceOp::kSum, this->reduced(n, [](T a, T b) { return a + b; }));
  check(ReduceOp::kProduct, this->reduced(n, [](T a, T b) { return a * b; }));
  check(ReduceOp::kMin, this->reduced(n, [](T a, T b) { return std::min(a, b); }));
  check(ReduceOp::kMax, this->reduced(n, [](T a, T b) { return std::max(a, b); }));
  if constexpr (std::is_integral_v<T>) {
    check(ReduceOp::kBitAnd, this->reduced(n, [](T a, T b) { return a & b; }));
    check(ReduceOp::kBitOr, this->reduced(n, [](T a, T b) { return a | b; }));
    check(ReduceOp::kBitXor, this->reduced(n, [](T a, T b) { return a ^ b; }));
  }
}

TYPED_TEST(MpiCollectives, MoveAndReduceAsTheirNamesSayWholeAndInPieces) {
  using T = TypeParam;
  const std::size_t n = this->kCount, w = this->kWorld;
  const int rank = this->rank_, root = 2;
  const auto me = static_cast<std::size_t>(rank);
  // In one MPI call, and in several calls as for counts beyond MPI's range.
  for (const std::size_t native : {std::size_t{1} << 30, std::size_t{512}}) {
    const auto group = connect_mpi({.native_bytes = native});
    const auto in = this->values(rank, n), wide = this->values(rank, n * w);
    std::vector<T> out(n), all(n * w), expected;
    const auto run = [&](Collective collective, const void* input, void* output,
                         ReduceOp op = ReduceOp::kSum) {
      auto call = this->args(input, output, n);
      call.root = root;
      call.op = op;
      group->run(collective, call);
    };
    run(Collective::kAllGather, in.data(), all.data());
    for (int peer = 0; peer < this->kWorld; ++peer) {
      const auto theirs = this->values(peer, n);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    EXPECT_EQ(all, expected);

    all.assign(n * w, T{});
    run(Collective::kGather, in.data(), rank == root ? all.data() : nullptr);
    if (rank == root) {
      EXPECT_EQ(all, expected);
    }

    run(Collective::kScatter, rank == root ? wide.data() : nullptr, out.data());
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], this->value(root, me * n + i));

    run(Collective::kAllToAll, wide.data(), all.data());
    for (std::size_t peer = 0; peer < w; ++peer) {
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_EQ(all[peer * n + i], this->value(static_cast<int>(peer), me * n + i));
    }

    run(Collective::kReduceScatter, wide.data(), out.data());
    const auto sums = this->reduced(n * w, this->sum);
    EXPECT_TRUE(
        std::equal(out.begin(), out.end(), sums.begin() + static_cast<std::ptrdiff_t>(me * n)));

    auto place = in;
    run(Collective::kReduce, place.data(), rank == root ? place.data() : nullptr);
    EXPECT_EQ(place, rank == root ? this->reduced(n, this->sum) : in);

    place = in;
    run(Collective::kBroadcast, place.data(), place.data());
    EXPECT_EQ(place, this->values(root, n));

    out = in;
    run(Collective::kAllReduce, out.data(), out.data());
    EXPECT_EQ(out, this->reduced(n, this->sum));
    run(Collective::kBarrier, nullptr, nullptr);
  }
}

TYPED_TEST(MpiCollectives, LetTheInputLieInTheOutput) {
  using T = TypeParam;
  const std::size_t n = this->kCount, w = this->kWorld, me = static_cast<std::size_t>(this->rank_);
  std::vector<T> all(n * w);
  const auto in = this->values(this->rank_, n);
  std::copy(in.begin(), in.end(), all.begin() + static_cast<std::ptrdiff_t>(me * n));
  this->group_->run(Collective::kAllGather, this->args(all.data() + me * n, all.data(), n));
  for (std::size_t i = 0; i < n * w; ++i)
    ASSERT_EQ(all[i], this->value(static_cast<int>(i / n), i % n));
  all = this->values(this->rank_, n * w);
  this->group_->run(Collective::kReduceScatter, this->args(all.data(), all.data() + me * n, n));
  const auto sums = this->reduced(n * w, this->sum);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(all[me * n + i], sums[me * n + i]);
}

using MpiNarrow = MpiContract;

TEST_F(MpiNarrow, ReducesSixteenBitFloatsThroughWeftsKernels) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> wide(1001), sums(1001), seen(1001);
    for (std::size_t i = 0; i < wide.size(); ++i)
      wide[i] = static_cast<float>(i % 16) + static_cast<float>(rank_);
    for (std::size_t i = 0; i < wide.size(); ++i) sums[i] = 4 * static_cast<float>(i % 16) + 6;
    std::vector<std::uint16_t> narrow(wide.size());
    kernels::cast(narrow.data(), dtype, wide.data(), DType::kF32, 1001);
    group_->run(Collective::kAllReduce, {.input = narrow.data(),
                                         .output = narrow.data(),
                                         .count = 1001,
                                         .dtype = dtype,
                                         .timeout = 20s});
    kernels::cast(seen.data(), DType::kF32, narrow.data(), dtype, 1001);
    EXPECT_EQ(seen, sums) << to_string(dtype);
  }
}

TEST_F(MpiNarrow, AddsBooleansAsOrAndAveragesByTheNumberOfRanks) {
  std::array<std::uint8_t, 3> flags{static_cast<std::uint8_t>(rank_ == 1), 0, 1};
  group_->run(Collective::kAllReduce, {.input = flags.data(),
                                       .output = flags.data(),
                                       .count = 3,
                                       .dtype = DType::kBool,
                                       .timeout = 20s});
  EXPECT_EQ(flags, (std::array<std::uint8_t, 3>{1, 0, 1}));
  float mean = static_cast<float>(rank_);
  group_->run(Collective::kAllReduce,
              {.input = &mean, .output = &mean, .count = 1, .op = ReduceOp::kAvg, .timeout = 20s});
  EXPECT_EQ(mean, 1.5f);
  const Error error = error_of([&] {
    group_->run(
        Collective::kAllReduce,
        {.input = &mean, .output = &mean, .count = 1, .op = ReduceOp::kBitOr, .timeout = 20s});
  });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_FALSE(group_->failure());
}

TEST_F(MpiNarrow, ANotANumberIsTheResultOfAMinimum) {
  float value = rank_ == 2 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
  group_->run(
      Collective::kAllReduce,
      {.input = &value, .output = &value, .count = 1, .op = ReduceOp::kMin, .timeout = 20s});
  EXPECT_TRUE(std::isnan(value));
}

TEST_F(MpiNarrow, RanksThatCallDifferentOperationsAllGetBothSignatures) {
  float value = 1;
  const DirectArgs call{.input = &value,
                        .output = &value,
                        .count = 1,
                        .op = rank_ == 3 ? ReduceOp::kMax : ReduceOp::kSum,
                        .timeout = 20s};
  const Error error = error_of([&] { group_->run(Collective::kAllReduce, call); });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("all_reduce(sum"));
  EXPECT_THAT(error.what(), HasSubstr("all_reduce(max"));
  EXPECT_EQ(error_of([&] { group_->run(Collective::kAllReduce, call); }).code(), Errc::kAborted);
}

// These tests end the use of MPI in their process. Each runs under its own mpirun, whose ranks end
// without MPI_Finalize.
using MpiEnd = MpiContract;

TEST_F(MpiEnd, ACollectiveThatARankDoesNotCallEndsAtItsDeadline) {
  std::vector<float> values(100'000, 1);
  const DirectArgs call{
      .input = values.data(), .output = values.data(), .count = 100'000, .timeout = 300ms};
  if (rank_ != 3) {
    const auto before = Deadline::Clock::now();
    const Error error = error_of([&] { group_->run(Collective::kAllReduce, call); });
    EXPECT_TRUE(error.code() == Errc::kTimeout || error.code() == Errc::kAborted) << error.what();
    EXPECT_LT(Deadline::Clock::now() - before, 10s);
    const Error later = error_of([&] { group_->run(Collective::kAllReduce, call); });
    EXPECT_EQ(later.code(), Errc::kAborted) << later.what();
  } else {
    Bytes in(8);
    EXPECT_EQ(error_of([&] { group_->recv(0, 1, in, soon()); }).code(), Errc::kAborted);
  }
}

TEST_F(MpiEnd, ARankThatLeavesEndsTheCollectiveOfTheOthers) {
  std::vector<float> values(100'000, 1);
  if (rank_ == 3) {
    group_.reset();
  } else {
    const Error error = error_of([&] {
      group_->run(
          Collective::kAllReduce,
          {.input = values.data(), .output = values.data(), .count = 100'000, .timeout = 20s});
    });
    EXPECT_TRUE(error.code() == Errc::kPeerLost || error.code() == Errc::kAborted) << error.what();
    EXPECT_EQ(error.context().peer, 3);
  }
}

}  // namespace
}  // namespace weft::net::mpi
