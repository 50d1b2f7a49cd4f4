// All-reduce of arrays outside of the shared heaps (internal/direct_ordinary.cc).
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <csignal>
#include <cstring>
#include <future>

#include "weft/base/deadline.h"
#include "weft/base/testing/in_time.h"
#include "weft/kernels/reduce.h"
#include "weft/net/memory/direct.h"
#include "weft/net/memory/internal/route_choice.h"
#include "weft/net/memory/internal/single_copy.h"
#include "weft/net/memory/internal/staging.h"
#include "weft/net/memory/testing/ranks.h"

namespace weft::net {
namespace ordinary_test {

using namespace std::chrono_literals;
using internal::Route;
using internal::RouteChoice;
using internal::run_processes;

// The first call of a group uses staging memory. The next ones use both ways in turn: each of them
// in place and not.
constexpr int kCalls = 5;
static_assert(kCalls <= 2 * RouteChoice::kTries);

// Bytes of small numbers that every type holds, different on each rank and in each call.
std::vector<std::byte> filled(int rank, int call, std::int64_t count, DType dtype) {
  std::vector<std::byte> data(static_cast<std::size_t>(count) * size_of(dtype));
  std::vector<float> small(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    small[static_cast<std::size_t>(i)] = static_cast<float>((i * 7 + call + 3 * rank) % 5);
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = small[static_cast<std::size_t>(i)];
    std::byte* const to = data.data() + static_cast<std::size_t>(i) * size_of(dtype);
    const auto put = [&](auto as_type) { std::memcpy(to, &as_type, sizeof as_type); };
    switch (dtype) {
      case DType::kF64: put(static_cast<double>(value)); break;
      case DType::kF32: put(value); break;
      case DType::kF16:
      case DType::kBF16: kernels::cast(to, dtype, &value, DType::kF32, 1); break;
      case DType::kI64: put(static_cast<std::int64_t>(value)); break;
      case DType::kI32: put(static_cast<std::int32_t>(value)); break;
      case DType::kI16: put(static_cast<std::int16_t>(value)); break;
      case DType::kBool: put(value > 2); break;
      default: put(static_cast<std::int8_t>(value)); break;
    }
  }
  return data;
}

struct Case {
  std::int64_t count;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t offset = 0;  // bytes between the array and an aligned address
};

// The sum of the ranks' arrays by the kernels alone.
std::vector<std::byte> expected(int world, int call, const Case& one) {
  std::vector<std::vector<std::byte>> arrays;
  std::vector<const void*> sources;
  for (int rank = 0; rank < world; ++rank) {
    arrays.push_back(filled(rank, call, one.count, one.dtype));
    sources.push_back(arrays.back().data());
  }
  std::vector<std::byte> sum(arrays[0].size());
  void* to = sum.data();
  kernels::reduce(&to, 1, sources.data(), world, {one.dtype, one.op, one.count});
  return sum;
}

// Bytes around the arrays, which must stay as they are.
constexpr std::size_t kGuard = 64;

bool right(Direct& direct, const Host& host, int call, const Case& one, bool in_place) {
  const auto mine = filled(host.rank(), call, one.count, one.dtype);
  const std::size_t before = kGuard + one.offset;
  std::vector<std::byte> input(before + mine.size() + kGuard, std::byte{0x5a});
  std::copy(mine.begin(), mine.end(), input.begin() + static_cast<std::ptrdiff_t>(before));
  std::vector<std::byte> other(input.size(), std::byte{0x5a});
  std::vector<std::byte>& output = in_place ? input : other;
  direct.all_reduce({.input = input.data() + before,
                     .output = output.data() + before,
                     .count = one.count,
                     .dtype = one.dtype,
                     .op = one.op,
                     .timeout = 20s});
  const auto sum = expected(host.world(), call, one);
  std::vector<std::byte> whole(input.size(), std::byte{0x5a});
  std::copy(sum.begin(), sum.end(), whole.begin() + static_cast<std::ptrdiff_t>(before));
  return output == whole;
}

// Runs a case both ways, in place and not.
bool right(Host& host, const Case& one) {
  Direct direct(host, 20s);
  for (int call = 0; call < kCalls; ++call)
    if (!right(direct, host, call, one, call % 4 < 2)) return false;
  return true;
}

std::vector<int> all_right(int world, const std::vector<Case>& cases) {
  return run_processes(world, [&](Host& host) {
    for (std::size_t i = 0; i < cases.size(); ++i)
      if (!right(host, cases[i])) return static_cast<int>(i) + 1;
    return 0;
  });
}

TEST(OrdinaryMemory, IsSummedAtSizesAroundTheBoundsOfChunksAndPieces) {
  constexpr auto kChunk = static_cast<std::int64_t>(internal::Staging::kChunk / 4);
  constexpr auto kPiece = static_cast<std::int64_t>(internal::Staging::kPiece / 4);
  std::vector<Case> cases;
  for (const std::int64_t bound : {std::int64_t{1024}, 2 * kChunk, 4 * kChunk, 2 * kPiece})
    for (const std::int64_t more : {-1, 0, 17}) cases.push_back({bound + more});
  EXPECT_EQ(all_right(2, cases), std::vector<int>(2, 0));
}

TEST(OrdinaryMemory, IsReducedForEveryTypeByTwoAndThreeRanks) {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                            DType::kI32, DType::kI16, DType::kI8, DType::kU8, DType::kBool}) {
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    cases.push_back({40'003 / size, dtype});
  }
  cases.push_back({20'011, DType::kF32, ReduceOp::kAvg});
  cases.push_back({20'011, DType::kI32, ReduceOp::kBitXor});
  for (const int world : {2, 3})
    EXPECT_EQ(all_right(world, cases), std::vector<int>(static_cast<std::size_t>(world), 0));
}

TEST(OrdinaryMemory, NeedsNoAlignment) {
  std::vector<Case> cases;
  for (const std::size_t offset : {1, 2, 4, 60})
    cases.push_back({20'011, DType::kF32, ReduceOp::kSum, offset});
  EXPECT_EQ(all_right(2, cases), std::vector<int>(2, 0));
  EXPECT_EQ(all_right(3, cases), std::vector<int>(3, 0));
}

TEST(OrdinaryMemory, OfOneRankMixesWithSharedMemoryOfAnother) {
  const std::int64_t count = 30'011;
  const auto statuses = run_processes(2, [&](Host& host) {
    Direct direct(host, 20s);
    std::vector<float> own(count);
    auto* const shared = reinterpret_cast<float*>(host.allocate(count * sizeof(float)));
    for (int call = 0; call < kCalls; ++call) {
      float* const data = host.rank() == call % 3 ? shared : own.data();
      for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(host.rank() + i % 11);
      direct.all_reduce({.input = data, .output = data, .count = count, .timeout = 20s});
      for (std::int64_t i = 0; i < count; ++i)
        if (data[i] != static_cast<float>(1 + 2 * (i % 11))) return 1;
    }
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

TEST(OrdinaryMemory, IsMovedBothWaysByEveryCollectiveWithoutAReduction) {
  const std::int64_t count = 20'011;
  for (const int world : {2, 3}) {
    const auto statuses = run_processes(world, [&](Host& host) {
      Direct direct(host, 20s);
      const int rank = host.rank();
      const auto n = static_cast<std::size_t>(count), all = n * static_cast<std::size_t>(world);
      const auto value = [](int of, std::int64_t i, int call) {
        return static_cast<float>(of * 1000 + i % 89 + call);
      };
      for (int call = 0; call < kCalls; ++call) {
        std::vector<float> block(n), blocks(all), got(all, -1), part(n, -1);
        for (std::size_t i = 0; i < all; ++i)
          blocks[i] = value(rank, static_cast<std::int64_t>(i), call);
        std::copy_n(blocks.begin(), n, block.begin());
        const auto args = [&](const auto& in, auto& out, int root) {
          return DirectArgs{.input = in.data(),
                            .output = out.data(),
                            .count = count,
                            .root = root,
                            .timeout = 20s};
        };
        direct.all_gather(args(block, got, 0));
        for (std::size_t i = 0; i < all; ++i)
          if (got[i] != value(static_cast<int>(i / n), static_cast<std::int64_t>(i % n), call))
            return 1;
        direct.all_to_all(args(blocks, got, 0));
        for (std::size_t i = 0; i < all; ++i)
          if (got[i] !=
              value(static_cast<int>(i / n), static_cast<std::int64_t>(i % n) + rank * count, call))
            return 2;
        std::fill(got.begin(), got.end(), -1.0f);
        direct.gather(args(block, got, 1));
        for (std::size_t i = 0; rank == 1 && i < all; ++i)
          if (got[i] != value(static_cast<int>(i / n), static_cast<std::int64_t>(i % n), call))
            return 3;
        direct.scatter(args(blocks, part, 1));
        for (std::size_t i = 0; i < n; ++i)
          if (part[i] != value(1, static_cast<std::int64_t>(i) + rank * count, call)) return 4;
        direct.broadcast(args(block, block, 1));
        for (std::size_t i = 0; i < n; ++i)
          if (block[i] != value(1, static_cast<std::int64_t>(i), call)) return 5;
      }
      return 0;
    });
    EXPECT_EQ(statuses, std::vector<int>(static_cast<std::size_t>(world), 0));
  }
}

// From now on, this process may not read the memory of others.
void forbid_reads_of_processes() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
    throw std::runtime_error("seccomp is not available");
}

internal::Staging staging_of(Host& host) {
  std::byte* const memory = host.share(internal::Staging::bytes_of(host.world()), 20s);
  return internal::Staging(host, memory, [&host] { host.meet("test", 20s); });
}

// Else a chunk would count as filled after 2^31 pieces, and its old contents would be summed.
TEST(OrdinaryMemory, NumbersItsChunksWithoutThePieces) {
  internal::run_threads(2, [](Host& host) {
    internal::Staging staging = staging_of(host);
    EXPECT_EQ(staging.take_chunks(3), 0u);
    EXPECT_EQ(staging.take_piece(), 0u);
    EXPECT_EQ(staging.take_piece(), 1u);
    EXPECT_EQ(staging.take_chunks(1), 3u);
    EXPECT_EQ(staging.take_piece(), 2u);
  });
}

TEST(OrdinaryMemory, IsStagedWhileAnotherThreadSharesMemory) {
  const auto statuses = run_processes(2, [](Host& host) {
    const auto rank = static_cast<std::size_t>(host.rank());
    for (int round = 0; round < 30; ++round) {
      Direct direct(host, 20s);
      auto first_sum =
          std::async(std::launch::async, [&] { return right(direct, host, 0, {16'384}, true); });
      std::vector<std::byte*> blocks;
      for (int i = 0; i < 20; ++i) {
        blocks.push_back(host.share(64, 20s));
        blocks.back()[rank] = std::byte(1 + i);
      }
      if (!first_sum.get()) return 1;
      host.meet("test", 20s);
      for (int i = 0; i < 20; ++i)
        if (blocks[static_cast<std::size_t>(i)][1 - rank] != std::byte(1 + i)) return 2;
    }
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

TEST(OrdinaryMemory, ThatThePeerDoesNotHaveIsUnavailable) {
  const auto statuses = run_processes(2, [](Host& host) {
    internal::Staging staging = staging_of(host);
    const bool reads = host.rank() == 0;
    std::uint64_t value = 0;
    try {
      reads ? staging.read(1, 8, &value, sizeof value, "test") : host.meet("test", 20s);
    } catch (const Error& error) {
      return error.code() == (reads ? Errc::kUnavailable : Errc::kAborted) ? 0 : 1;
    }
    return 2;
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

TEST(OrdinaryMemory, IsStagedByAllRanksIfOneMayNotReadTheOthers) {
  for (const int world : {2, 3}) {
    const auto statuses = run_processes(world, [](Host& host) {
      if (host.rank() == 1) forbid_reads_of_processes();
      if (staging_of(host).single_copy()) return 1;
      return right(host, {50'021}) ? 0 : 2;
    });
    EXPECT_EQ(statuses, std::vector<int>(static_cast<std::size_t>(world), 0));
  }
}

TEST(OrdinaryMemory, OfAKilledProcessIsNotRead) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const std::uint64_t value = static_cast<std::uint64_t>(getpid());
  const pid_t child = fork();
  if (child == 0) {
    const std::uint64_t own = value + 1;
    const auto at = reinterpret_cast<std::uintptr_t>(&own);
    if (write(pipe_ends[1], &at, sizeof at) != sizeof at) _exit(1);
    pause();
    _exit(0);
  }
  std::uintptr_t at = 0;
  ASSERT_EQ(read(pipe_ends[0], &at, sizeof at), static_cast<ssize_t>(sizeof at));
  std::uint64_t got = 0;
  EXPECT_EQ(internal::read_process(child, at, &got, sizeof got), 0);
  EXPECT_EQ(got, value + 1);
  EXPECT_EQ(internal::read_process(child, 8, &got, sizeof got), EFAULT);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(internal::read_process(child, at, &got, sizeof got), ESRCH);
  for (const int end : pipe_ends) close(end);
}

TEST(OrdinaryMemory, IsReadableForTheKernelUnlessItsPagesAreNot) {
  const std::size_t page = 4096;
  auto* const memory = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  EXPECT_TRUE(internal::kernel_can_read(memory, 2 * page));
  ASSERT_EQ(mprotect(memory + page, page, PROT_NONE), 0);
  EXPECT_TRUE(internal::kernel_can_read(memory, page));
  EXPECT_FALSE(internal::kernel_can_read(memory, page + 1));
  munmap(memory, 2 * page);
}

TEST(OrdinaryMemoryTiming, ARankKilledInTheMiddleOfACallIsPeerLostWithinTwoSeconds) {
  expect_within(2s, [](SlowestRank& slowest) {
    for (const auto& [world, count] : {std::pair{2, 20'000}, {2, 2'000'000}, {3, 2'000'000}}) {
      const auto statuses = run_processes(world, [&, count = count](Host& host) {
        Direct direct(host, 20s);
        std::vector<float> data(static_cast<std::size_t>(count), 0.0f);
        std::atomic<int> calls{0};
        std::thread killer;
        if (host.rank() == 1) {
          killer = std::thread([&] {
            while (calls.load() < 5) std::this_thread::yield();
            raise(SIGKILL);
          });
        }
        auto start = Deadline::Clock::now();
        try {
          for (;; ++calls) {
            start = Deadline::Clock::now();
            direct.all_reduce(
                {.input = data.data(), .output = data.data(), .count = count, .timeout = 20s});
          }
        } catch (const Error& error) {
          slowest.report_since(start);
          return error.code() == Errc::kPeerLost && error.context().peer == 1 ? 0 : 3;
        }
      });
      for (int rank = 0; rank < world; ++rank)
        EXPECT_EQ(
            rank == 1 ? WIFSIGNALED(statuses[1]) : statuses[static_cast<std::size_t>(rank)] == 0,
            true)
            << rank;
    }
  });
}

TEST(RouteChoice, TriesBothWaysAndThenUsesTheFasterOne) {
  RouteChoice choice;
  for (std::uint32_t call = 0; call < 2 * RouteChoice::kTries; ++call) {
    const Route route = choice.next(100'000);
    EXPECT_EQ(route, call % 2 == 0 ? Route::kStaged : Route::kSingleCopy);
    choice.report(100'000, route, route == Route::kStaged ? 20'000 : 10'000);
  }
  EXPECT_EQ(choice.next(100'000), Route::kSingleCopy);
  EXPECT_EQ(choice.next(90'000), Route::kSingleCopy);  // the same class
  EXPECT_EQ(choice.next(1 << 20), Route::kStaged);     // another class, not tried yet
}

TEST(RouteChoice, ChoosesAWayIfAllTriesHaveFailed) {
  RouteChoice choice;
  for (std::uint32_t call = 0; call < 2 * RouteChoice::kTries; ++call) choice.next(100'000);
  EXPECT_EQ(choice.next(100'000), Route::kStaged);
}

TEST(RouteChoice, FindsOutThatTheOtherWayHasBecomeFaster) {
  RouteChoice choice;
  const auto run = [&](double staged, double single, int calls) {
    Route route{};
    int other = 0;
    for (int call = 0; call < calls; ++call) {
      route = choice.next(1 << 20);
      choice.report(1 << 20, route, route == Route::kStaged ? staged : single);
      other += route == Route::kSingleCopy;
    }
    return other;
  };
  EXPECT_LE(run(100, 150, 1000), 25);  // half slower in a fiftieth of the calls
  EXPECT_GE(run(600, 130, 1000), 950);
}

TEST(RouteChoice, OneInterruptedCallDoesNotChangeTheWay) {
  RouteChoice choice;
  for (std::uint32_t call = 0; call < 2 * RouteChoice::kTries; ++call) {
    const Route route = choice.next(65'536);
    choice.report(65'536, route, route == Route::kStaged ? 100 : 150);
  }
  choice.report(65'536, Route::kStaged, 20'000'000);
  EXPECT_EQ(choice.next(65'536), Route::kStaged);
}

}  // namespace ordinary_test
}  // namespace weft::net
