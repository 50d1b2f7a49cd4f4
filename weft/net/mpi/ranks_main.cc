// The endpoint contract and the collectives over MPI. Each test is run by all ranks of an mpirun at once: four of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "weft/kernels/reduce.h"
#include "weft/net/mpi/mpi.h"

namespace weft::net::mpi {
namespace {

using namespace std::chrono_literals;
using schedule::Collective;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Deadline soon() { return Deadline::in(20s); }

Bytes pattern(std::size_t size, int seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + (i >> 9) + static_cast<std::size_t>(seed) * 17) & 0xff);
  return bytes;
}

template <typename F>
Error error_of(const F& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(Errc::kInternal, "no error was thrown");
}

// One rank's view: a new group for each test. meet() waits for all ranks without a word over that group.
class MpiContract : public testing::Test {
 protected:
  static constexpr int kWorld = 4;
  void SetUp() override {
    group_ = connect_mpi();
    ASSERT_EQ(group_->world(), kWorld);
    rank_ = group_->rank();
  }
  void meet() { connect_mpi({.epoch = 99}); }
  void swap(Channel channel, int peer, const Bytes& out, Bytes& in) {
    const Send send{peer, out};
    const Recv recv{peer, in};
    group_->exchange(channel, {&send, 1}, {&recv, 1}, soon());
  }

  std::unique_ptr<MpiEndpoint> group_;
  int rank_ = -1;
};

TEST_F(MpiContract, KnowsItsRankWorldAndName) {
  EXPECT_STREQ(group_->name(), "mpi");
  EXPECT_EQ(group_->implementation(), started_by([](const char* name) { return std::getenv(name); }));
  EXPECT_EQ(connect_mpi({.epoch = 7})->epoch(), 7u);
  EXPECT_FALSE(group_->failure());
}

TEST_F(MpiContract, DeliversMessagesOfAllSizesUnchanged) {
  for (const std::size_t size : {0, 1, 63, 4096, 4097, 16 * 1024 + 1, 256 * 1024, 256 * 1024 + 1, 3 * 1024 * 1024 + 17}) {
    Bytes in(size);
    swap(7, rank_ ^ 1, pattern(size, rank_), in);
    EXPECT_TRUE(in == pattern(size, rank_ ^ 1)) << size;
  }
}

TEST_F(MpiContract, AllToAllOfLargeMessagesInOneCallDoesNotDeadlock) {
  std::vector<Bytes> out, in(kWorld, Bytes(1 << 20));
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  for (int peer = 0; peer < kWorld; ++peer) out.push_back(pattern(1 << 20, rank_ * kWorld + peer));
  for (int peer = 0; peer < kWorld; ++peer) {
    sends.push_back({peer, out[static_cast<std::size_t>(peer)]});
    recvs.push_back({peer, in[static_cast<std::size_t>(peer)]});
  }
  group_->exchange(1, sends, recvs, soon());
  for (int peer = 0; peer < kWorld; ++peer) EXPECT_TRUE(in[static_cast<std::size_t>(peer)] == pattern(1 << 20, peer * kWorld + rank_));
}

TEST_F(MpiContract, MessagesThatNobodyAwaitsYetKeepTheirOrderOnEachChannel) {
  for (int i = 0; rank_ == 0 && i < 50; ++i) {
    for (Channel channel : {5, 6}) group_->send(1, channel, pattern(1000 + static_cast<std::size_t>(i), i), soon());
  }
  meet();
  for (Channel channel : {6, 5}) {
    for (int i = 0; rank_ == 1 && i < 50; ++i) {
      Bytes in(1000 + static_cast<std::size_t>(i));
      group_->recv(0, channel, in, soon());
      EXPECT_TRUE(in == pattern(in.size(), i));
    }
  }
}

TEST_F(MpiContract, SendsToItself) {
  for (const std::size_t size : {100, 5000}) {
    Bytes in(size);
    swap(3, rank_, pattern(size, 1), in);
    EXPECT_TRUE(in == pattern(size, 1));
  }
}

TEST_F(MpiContract, AwaitAnyGivesTheSenderAndLeavesTheMessage) {
  if (rank_ == 2) group_->send(0, 9, pattern(100, 2), soon());
  if (rank_ == 0) {
    EXPECT_EQ(group_->await_any(9, soon()), 2);
    EXPECT_EQ(group_->await_any(9, soon()), 2);
    Bytes in(100);
    group_->recv(2, 9, in, soon());
    EXPECT_TRUE(in == pattern(100, 2));
    EXPECT_EQ(error_of([&] { group_->await_any(9, Deadline::in(5ms)); }).code(), Errc::kTimeout);
    EXPECT_FALSE(group_->failure());  // nothing was begun, so nothing is broken
  }
  meet();
}

TEST_F(MpiContract, ManyThreadsOfOneRankUseChannelsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 10; ++i) {
        Bytes in(30'000);
        swap(static_cast<Channel>(thread), rank_ ^ 1, pattern(30'000, i + rank_), in);
        EXPECT_TRUE(in == pattern(30'000, i + (rank_ ^ 1)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(MpiContract, ADeadlineEndsAWaitNamesThePeerAndEndsTheGroupForAll) {
  Bytes in(8);
  if (rank_ == 0) {
    const Error error = error_of([&] { group_->recv(1, 1, in, Deadline::in(30ms)); });
    EXPECT_EQ(error.code(), Errc::kTimeout);
    EXPECT_EQ(error.context().peer, 1);
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    EXPECT_EQ(error_of([&] { group_->recv(1, 1, in, soon()); }).code(), Errc::kAborted);
  } else if (rank_ == 2) {
    const Error error = error_of([&] { group_->recv(1, 1, in, soon()); });
    EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
    EXPECT_EQ(error.context().peer, 0);
  }
  meet();
}

TEST_F(MpiContract, ALengthThatDiffersIsAnErrorThatNamesBothLengths) {
  for (const bool posted_first : {false, true}) {
    auto pair = connect_mpi({.epoch = posted_first});
    if (posted_first || rank_ != 1) {
      if (rank_ == 0) error_of([&] { pair->send(1, 4, pattern(16, 0), soon()); });
    }
    if (!posted_first) meet();
    if (rank_ == 1) {
      Bytes in(8);
      const Error error = error_of([&] { pair->recv(0, 4, in, soon()); });
      EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("receives 8 bytes"));
      EXPECT_THAT(error.what(), HasSubstr("sent 16"));
    }
    meet();
  }
}

TEST_F(MpiContract, FailEndsPendingAndLaterCallsAndCitesTheFirstError) {
  if (rank_ == 0) {
    std::thread failing([&] { group_->fail(Error(Errc::kInternal, "the first")); });
    Bytes in(8);
    const Error pending = error_of([&] { group_->recv(1, 1, in, soon()); });
    failing.join();
    group_->fail(Error(Errc::kInternal, "the second"));
    const Error later = error_of([&] { group_->await_any(1, soon()); });
    for (const Error& error : {pending, later}) {
      EXPECT_EQ(error.code(), Errc::kAborted);
      EXPECT_THAT(error.what(), HasSubstr("the first"));
    }
    EXPECT_THAT(group_->failure()->what(), HasSubstr("the first"));
  }
  meet();
}

TEST_F(MpiContract, ADestroyedEndpointIsLostForAllWhoWaitForItOrForOthers) {
  if (rank_ == 2) {
    group_.reset();
  } else {
    Bytes in(8);
    const int from = rank_ == 3 ? 0 : 2;
    const Error error = error_of([&] { group_->recv(from, 1, in, soon()); });
    EXPECT_TRUE(error.code() == Errc::kPeerLost || (rank_ == 3 && error.code() == Errc::kAborted)) << error.what();
    EXPECT_EQ(error.context().peer, 2);
    EXPECT_EQ(error.context().rank, rank_);
    EXPECT_EQ(error_of([&] { group_->recv(2, 1, in, soon()); }).code(), Errc::kPeerLost);
    const Error other = error_of([&] { group_->recv(from ^ 1, 1, in, soon()); });
    EXPECT_EQ(other.code(), Errc::kAborted) << other.what();
  }
  meet();
}

TEST_F(MpiContract, WhatWasSentBeforeLeavingIsStillReceived) {
  const auto large = pattern(3 << 20, 4), little = pattern(100, 5);
  if (rank_ == 0) {
    group_->send(1, 2, large, soon());
    group_->send(1, 2, little, soon());
    group_.reset();
  } else if (rank_ == 1) {
    Bytes in(large.size()), end(little.size());
    group_->recv(0, 2, in, soon());
    group_->recv(0, 2, end, soon());
    EXPECT_TRUE(in == large && end == little);
    EXPECT_FALSE(group_->failure());  // an orderly end is no loss
  }
  meet();
}

TEST_F(MpiContract, APeerThatIsNoRankIsTheCallersMistakeAndBreaksNothing) {
  EXPECT_EQ(error_of([&] { group_->send(kWorld, 1, {}, soon()); }).code(), Errc::kInvalidArgument);
  EXPECT_EQ(error_of([&] { group_->recv(-1, 1, {}, soon()); }).code(), Errc::kInvalidArgument);
  EXPECT_FALSE(group_->failure());
}

TEST_F(MpiContract, LargeMessagesWaitForTheirReceivesAndNothingIsLost) {
  const auto block = pattern(2 << 20, 1);
  if (rank_ == 0) {
    for (int i = 0; i < 6; ++i) group_->send(1, 1, block, soon());
  } else if (rank_ == 1) {
    EXPECT_EQ(group_->await_any(1, soon()), 0);
    for (int i = 0; i < 6; ++i) {
      Bytes in(block.size());
      group_->recv(0, 1, in, soon());
      ASSERT_TRUE(in == block);
    }
  }
  meet();
}

TEST_F(MpiContract, GroupsOverSomeOfTheRanksNumberThemInTheirOwnOrder) {
  const std::vector<int> ranks = rank_ % 2 == 0 ? std::vector<int>{2, 0} : std::vector<int>{1, 3};
  const auto pair = connect_mpi({.ranks = ranks});
  ASSERT_EQ(pair->world(), 2);
  EXPECT_EQ(pair->rank(), rank_ == ranks[0] ? 0 : 1);
  Bytes in(5000);
  const auto out = pattern(5000, rank_);
  const Send send{1 - pair->rank(), out};
  const Recv recv{1 - pair->rank(), in};
  pair->exchange(1, {&send, 1}, {&recv, 1}, soon());
  EXPECT_TRUE(in == pattern(5000, ranks[static_cast<std::size_t>(1 - pair->rank())]));
  EXPECT_EQ(error_of([&] { connect_mpi({.ranks = {(rank_ + 1) % kWorld}}); }).code(), Errc::kInvalidArgument);
  EXPECT_EQ(error_of([] { connect_mpi({.ranks = {0, 0}}); }).code(), Errc::kInvalidArgument);
}

TEST_F(MpiContract, ExchangesTextsOfAllLengths) {
  const auto text = [](int rank) { return std::string(static_cast<std::size_t>(rank) * 3000, static_cast<char>('a' + rank)); };
  const auto all = exchange(*group_, text(rank_), soon());
  for (int peer = 0; peer < kWorld; ++peer) EXPECT_EQ(all[static_cast<std::size_t>(peer)], text(peer));
}

// Collectives. Values are small whole numbers, which every type adds up without rounding.
template <class T>
struct Kind;
template <>
struct Kind<double> {
  static constexpr DType dtype = DType::kF64;
};
template <>
struct Kind<float> {
  static constexpr DType dtype = DType::kF32;
};
template <>
struct Kind<std::int64_t> {
  static constexpr DType dtype = DType::kI64;
};
template <>
struct Kind<std::int32_t> {
  static constexpr DType dtype = DType::kI32;
};
template <>
struct Kind<std::int16_t> {
  static constexpr DType dtype = DType::kI16;
};
template <>
struct Kind<std::int8_t> {
  static constexpr DType dtype = DType::kI8;
};
template <>
struct Kind<std::uint8_t> {
  static constexpr DType dtype = DType::kU8;
};

template <class T>
class MpiCollectives : public MpiContract {
 protected:
  static constexpr std::size_t kCount = 1003;  // no multiple of the world

  static T value(int rank, std::size_t i) { return static_cast<T>((static_cast<std::size_t>(rank) * 3 + i) % 5 + 1); }
  static std::vector<T> values(int rank, std::size_t count) {
    std::vector<T> all(count);
    for (std::size_t i = 0; i < count; ++i) all[i] = value(rank, i);
    return all;
  }
  template <class F>
  static std::vector<T> reduced(std::size_t count, const F& combine) {
    auto all = values(0, count);
    for (int rank = 1; rank < MpiContract::kWorld; ++rank) {
      for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<T>(combine(all[i], value(rank, i)));
    }
    return all;
  }
  static DirectArgs args(const void* input, void* output, std::size_t count) {
    return {.input = input, .output = output, .count = static_cast<std::int64_t>(count), .dtype = Kind<T>::dtype, .timeout = 20s};
  }
  static T sum(T a, T b) { return static_cast<T>(a + b); }
};

using Types = testing::Types<double, float, std::int64_t, std::int32_t, std::int16_t, std::int8_t, std::uint8_t>;
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
  // In one call of MPI, and cut as calls beyond its counts are.
  for (const std::size_t native : {std::size_t{1} << 30, std::size_t{512}}) {
    const auto group = connect_mpi({.native_bytes = native});
    const auto in = this->values(rank, n), wide = this->values(rank, n * w);
    std::vector<T> out(n), all(n * w), expected;
    const auto run = [&](Collective collective, const void* input, void* output, ReduceOp op = ReduceOp::kSum) {
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
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(all[peer * n + i], this->value(static_cast<int>(peer), me * n + i));
    }

    run(Collective::kReduceScatter, wide.data(), out.data());
    const auto sums = this->reduced(n * w, this->sum);
    EXPECT_TRUE(std::equal(out.begin(), out.end(), sums.begin() + static_cast<std::ptrdiff_t>(me * n)));

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
  for (std::size_t i = 0; i < n * w; ++i) ASSERT_EQ(all[i], this->value(static_cast<int>(i / n), i % n));
  all = this->values(this->rank_, n * w);
  this->group_->run(Collective::kReduceScatter, this->args(all.data(), all.data() + me * n, n));
  const auto sums = this->reduced(n * w, this->sum);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(all[me * n + i], sums[me * n + i]);
}

using MpiNarrow = MpiContract;

TEST_F(MpiNarrow, ReducesSixteenBitFloatsThroughWeftsKernels) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> wide(1001), sums(1001), seen(1001);
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i % 16) + static_cast<float>(rank_);
    for (std::size_t i = 0; i < wide.size(); ++i) sums[i] = 4 * static_cast<float>(i % 16) + 6;
    std::vector<std::uint16_t> narrow(wide.size());
    kernels::cast(narrow.data(), dtype, wide.data(), DType::kF32, 1001);
    group_->run(Collective::kAllReduce, {.input = narrow.data(), .output = narrow.data(), .count = 1001, .dtype = dtype, .timeout = 20s});
    kernels::cast(seen.data(), DType::kF32, narrow.data(), dtype, 1001);
    EXPECT_EQ(seen, sums) << to_string(dtype);
  }
}

TEST_F(MpiNarrow, AddsTruthValuesAsOrAndAveragesByTheWorld) {
  std::array<std::uint8_t, 3> flags{static_cast<std::uint8_t>(rank_ == 1), 0, 1};
  group_->run(Collective::kAllReduce, {.input = flags.data(), .output = flags.data(), .count = 3, .dtype = DType::kBool, .timeout = 20s});
  EXPECT_EQ(flags, (std::array<std::uint8_t, 3>{1, 0, 1}));
  float mean = static_cast<float>(rank_);
  group_->run(Collective::kAllReduce, {.input = &mean, .output = &mean, .count = 1, .op = ReduceOp::kAvg, .timeout = 20s});
  EXPECT_EQ(mean, 1.5f);
  const Error error = error_of(
      [&] { group_->run(Collective::kAllReduce, {.input = &mean, .output = &mean, .count = 1, .op = ReduceOp::kBitOr, .timeout = 20s}); });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument);
  EXPECT_FALSE(group_->failure());
}

TEST_F(MpiNarrow, ANotANumberIsTheResultOfAMinimum) {
  float value = rank_ == 2 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
  group_->run(Collective::kAllReduce, {.input = &value, .output = &value, .count = 1, .op = ReduceOp::kMin, .timeout = 20s});
  EXPECT_TRUE(std::isnan(value));
}

TEST_F(MpiNarrow, RanksThatCallDifferentOperationsAllSeeBoth) {
  float value = 1;
  const DirectArgs call{.input = &value, .output = &value, .count = 1, .op = rank_ == 3 ? ReduceOp::kMax : ReduceOp::kSum, .timeout = 20s};
  const Error error = error_of([&] { group_->run(Collective::kAllReduce, call); });
  EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("all_reduce(sum"));
  EXPECT_THAT(error.what(), HasSubstr("all_reduce(max"));
  EXPECT_EQ(error_of([&] { group_->run(Collective::kAllReduce, call); }).code(), Errc::kAborted);
}

// These end the use of MPI in their process: each is run by an mpirun of its own, which sees the ranks end without MPI_Finalize.
using MpiEnd = MpiContract;

TEST_F(MpiEnd, ACollectiveThatARankDoesNotCallEndsAtItsDeadline) {
  std::vector<float> values(100'000, 1);
  const DirectArgs call{.input = values.data(), .output = values.data(), .count = 100'000, .timeout = 300ms};
  if (rank_ != 3) {
    const auto before = Deadline::Clock::now();
    const Error error = error_of([&] { group_->run(Collective::kAllReduce, call); });
    EXPECT_TRUE(error.code() == Errc::kTimeout || error.code() == Errc::kAborted) << error.what();
    EXPECT_LT(Deadline::Clock::now() - before, 3s);
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
    const Error error = error_of(
        [&] { group_->run(Collective::kAllReduce, {.input = values.data(), .output = values.data(), .count = 100'000, .timeout = 20s}); });
    EXPECT_TRUE(error.code() == Errc::kPeerLost || error.code() == Errc::kAborted) << error.what();
    EXPECT_EQ(error.context().peer, 3);
  }
}

}  // namespace
}  // namespace weft::net::mpi

// Ranks that end without MPI_Finalize are killed by some launchers as soon as the first has ended. So each leaves its result as a file in
// $WEFT_RANKS_DIR, where that is set, and waits for the others' files.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const char* folder = std::getenv("WEFT_RANKS_DIR");
  if (folder == nullptr) return failed;
  std::ofstream(std::string(folder) + "/" + std::to_string(getpid())) << (failed == 0 ? "passed" : "failed");
  const auto all_there = [&] {
    const std::filesystem::directory_iterator files(folder);
    return std::distance(begin(files), end(files)) == 4;
  };
  for (const auto end = weft::Deadline::in(std::chrono::seconds(20)); !all_there() && !end.passed();) sched_yield();
  return failed;
}
