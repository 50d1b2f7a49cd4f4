#include "weft/net/execute/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "weft/kernels/reduce.h"
#include "weft/net/testing/thread_ranks.h"

namespace weft::net {
namespace executor_test {

using namespace std::chrono_literals;
using internal::Mail;
using internal::MailEndpoint;
using internal::on_ranks;
using schedule::Algorithm;
using schedule::Collective;
using schedule::make;
using schedule::Request;
using ::testing::HasSubstr;

ExecutorArgs arguments(const void* input, void* output, DType dtype = DType::kF32,
                       ReduceOp op = ReduceOp::kSum) {
  return {.input = input,
          .output = output,
          .dtype = dtype,
          .op = op,
          .channel = 7,
          .deadline = Deadline::in(20s)};
}

// Small whole numbers, so that sums and products are exact in every type; element i of a rank's
// input.
int element(int rank, std::int64_t i) { return 1 + static_cast<int>((3 * rank + 5 * i) % 3); }

// Reference: element i of `rank`'s output, by a plain loop.
int expected(const Request& q, int rank, std::int64_t i) {
  const int block = q.count == 0 ? 0 : static_cast<int>(i / q.count);
  const std::int64_t place = q.count == 0 ? 0 : i % q.count;
  const std::int64_t mine = rank * q.count;
  int sum = 0;
  switch (q.collective) {
    case Collective::kAllGather:
    case Collective::kGather: return element(block, place);
    case Collective::kBroadcast: return element(q.root, i);
    case Collective::kScatter: return element(q.root, mine + i);
    case Collective::kAllToAll: return element(block, mine + place);
    default: break;
  }
  for (int r = 0; r < q.world; ++r)
    sum += element(r, q.collective == Collective::kReduceScatter ? mine + i : i);
  return sum;
}

std::string text(const Request& q) {
  return std::string(to_string(q.algorithm)) + " " + to_string(q.collective) + ", rank " +
         std::to_string(q.rank) + " of " + std::to_string(q.world) + ", root " +
         std::to_string(q.root) + ", count " + std::to_string(q.count);
}

void run_and_compare(const Request& q, Endpoint& endpoint, bool same_array) {
  const schedule::Schedule steps = make(q);
  std::vector<float> input(steps.input);
  std::vector<float> output(steps.output, -1.0f);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(element(q.rank, i));
  std::vector<float> wanted(steps.output);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = static_cast<float>(expected(q, q.rank, i));
  if (same_array && input.size() == output.size()) {
    run(steps, endpoint, arguments(input.data(), input.data()));
    EXPECT_EQ(input, wanted) << text(q) << ", in place";
  } else {
    const std::vector<float> before = input;
    run(steps, endpoint, arguments(input.data(), output.data()));
    EXPECT_EQ(output, wanted) << text(q);
    EXPECT_EQ(input, before) << text(q);
  }
}

void for_each_request(int world, const std::function<void(const Request&)>& body) {
  for (const Algorithm algorithm : schedule::algorithms()) {
    for (const Collective collective : schedule::collectives()) {
      if (algorithm == Algorithm::kDirect || !supports(algorithm, collective)) continue;
      const std::vector<std::int64_t> counts =
          collective == Collective::kBarrier ? std::vector<std::int64_t>{0}
                                             : std::vector<std::int64_t>{0, 1, 7, 3 * world + 1};
      for (const std::int64_t count : counts)
        body({collective, algorithm, 0, world, world / 2, count});
    }
  }
}

class ExecutorWorlds : public ::testing::TestWithParam<int> {};

TEST_P(ExecutorWorlds, EqualAPlainLoopForEveryAlgorithmAndCollective) {
  on_ranks(GetParam(), [](MailEndpoint& endpoint) {
    for_each_request(endpoint.world(), [&](Request q) {
      q.rank = endpoint.rank();
      run_and_compare(q, endpoint, /*same_array=*/false);
    });
  });
}

TEST_P(ExecutorWorlds, GiveTheSameResultInPlace) {
  on_ranks(GetParam(), [](MailEndpoint& endpoint) {
    for_each_request(endpoint.world(), [&](Request q) {
      q.rank = endpoint.rank();
      run_and_compare(q, endpoint, /*same_array=*/true);
    });
  });
}

// The shorter array is a block of the longer one: this rank's block, as in NCCL, or one shifted by
// an element.
TEST_P(ExecutorWorlds, GiveTheSameResultIfOneArrayIsABlockOfTheOther) {
  on_ranks(GetParam(), [](MailEndpoint& endpoint) {
    for_each_request(endpoint.world(), [&](Request q) {
      q.rank = endpoint.rank();
      const schedule::Schedule steps = make(q);
      for (const std::int64_t shift : {0, 1}) {
        if (steps.input == 0 || steps.output == 0) {
          run_and_compare(q, endpoint, false);
          continue;
        }
        const std::int64_t shorter = std::min(steps.input, steps.output),
                           longer = std::max(steps.input, steps.output);
        const std::int64_t block = longer == shorter ? 0 : q.rank * shorter;
        std::vector<float> memory(static_cast<std::size_t>(longer + shorter + 1), -1.0f);
        float* const input = memory.data() + (steps.input < longer ? block + shift : 0);
        float* const output = memory.data() + (steps.input < longer ? 0 : block + shift);
        for (std::int64_t i = 0; i < steps.input; ++i)
          input[i] = static_cast<float>(element(q.rank, i));
        run(steps, endpoint, arguments(input, output));
        for (std::int64_t i = 0; i < steps.output; ++i) {
          ASSERT_EQ(output[i], static_cast<float>(expected(q, q.rank, i)))
              << text(q) << ", shifted by " << shift << ", element " << i;
        }
      }
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Few, ExecutorWorlds, ::testing::Range(1, 10));

// --- Types and operations ---

void store(DType dtype, int value, std::byte* to) {
  const auto put = [&](auto typed) { std::memcpy(to, &typed, sizeof typed); };
  switch (dtype) {
    case DType::kF64: return put(static_cast<double>(value));
    case DType::kF32: return put(static_cast<float>(value));
    case DType::kF16:
    case DType::kBF16: {
      const float single = static_cast<float>(value);
      return kernels::cast(to, dtype, &single, DType::kF32, 1);
    }
    case DType::kI64: return put(static_cast<std::int64_t>(value));
    case DType::kI32: return put(static_cast<std::int32_t>(value));
    case DType::kI16: return put(static_cast<std::int16_t>(value));
    case DType::kI8: return put(static_cast<std::int8_t>(value));
    case DType::kU8: return put(static_cast<std::uint8_t>(value));
    case DType::kBool: return put(static_cast<std::uint8_t>(value != 0));
  }
}

std::vector<std::byte> stored(DType dtype, std::int64_t count,
                              const std::function<int(std::int64_t)>& value) {
  std::vector<std::byte> bytes(count * size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i)
    store(dtype, value(i), bytes.data() + i * size_of(dtype));
  return bytes;
}

int combined(ReduceOp op, int a, int b) {
  switch (op) {
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kMin: return std::min(a, b);
    case ReduceOp::kMax: return std::max(a, b);
    case ReduceOp::kBitAnd: return a & b;
    case ReduceOp::kBitOr: return a | b;
    case ReduceOp::kBitXor: return a ^ b;
    default: return a + b;
  }
}

bool has(DType dtype, ReduceOp op) {
  const bool bits = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  return is_floating(dtype) ? !bits : op != ReduceOp::kAvg;
}

// Elements are multiples of 2 or 4, so that averages over 4 ranks are whole numbers.
void reduce_and_compare(MailEndpoint& endpoint, DType dtype, ReduceOp op, Algorithm algorithm) {
  constexpr std::int64_t kCount = 13;
  const int world = endpoint.world();
  const auto value = [&](int rank, std::int64_t i) {
    return dtype == DType::kBool ? static_cast<int>((rank + i) % 2)
                                 : (rank % 2 == 0 ? 2 : 4) * static_cast<int>(i % 2 + 1);
  };
  const auto wanted_value = [&](std::int64_t i) {
    int result = value(0, i);
    for (int r = 1; r < world; ++r) result = combined(op, result, value(r, i));
    if (dtype == DType::kBool && op == ReduceOp::kProduct) return static_cast<int>(result != 0);
    return op == ReduceOp::kAvg ? result / world : result;
  };
  const auto input =
      stored(dtype, kCount, [&](std::int64_t i) { return value(endpoint.rank(), i); });
  const auto wanted = stored(dtype, kCount, wanted_value);
  std::vector<std::byte> output(input.size());
  const schedule::Schedule steps =
      make({Collective::kAllReduce, algorithm, endpoint.rank(), world, 0, kCount});
  run(steps, endpoint, arguments(input.data(), output.data(), dtype, op));
  EXPECT_EQ(output, wanted) << to_string(dtype) << " " << to_string(op) << " by "
                            << to_string(algorithm);
}

TEST(Executor, ReducesEveryTypeByEverySupportedOperation) {
  on_ranks(4, [](MailEndpoint& endpoint) {
    for (int type = 0; type <= static_cast<int>(DType::kBool); ++type) {
      for (int op = 0; op <= static_cast<int>(ReduceOp::kBitXor); ++op) {
        const auto dtype = static_cast<DType>(type);
        const auto reduce_op = static_cast<ReduceOp>(op);
        // 4 * 8^3 does not fit into 8 bits; the tests of weft/kernels cover products of small
        // types.
        if (!has(dtype, reduce_op) ||
            (reduce_op == ReduceOp::kProduct && size_of(dtype) == 1 && dtype != DType::kBool))
          continue;
        for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
          reduce_and_compare(endpoint, dtype, reduce_op, algorithm);
        }
      }
    }
  });
}

TEST(Executor, AveragesByOneDivisionAndSkipsRanksWithoutOutput) {
  on_ranks(4, [](MailEndpoint& endpoint) {
    const std::vector<float> input(5, static_cast<float>(endpoint.rank() + 1));
    for (const Algorithm algorithm :
         {Algorithm::kChain, Algorithm::kBinomial, Algorithm::kDoubleBinaryTree}) {
      std::vector<float> output(5, -1.0f);
      const bool root = endpoint.rank() == 2;
      const auto steps = make({Collective::kReduce, algorithm, endpoint.rank(), 4, 2, 5});
      run(steps, endpoint, arguments(input.data(), output.data(), DType::kF32, ReduceOp::kAvg));
      EXPECT_EQ(output, std::vector<float>(5, root ? 2.5f : -1.0f)) << to_string(algorithm);
    }
    std::vector<float> copy(5, -1.0f);
    const auto broadcast =
        make({Collective::kBroadcast, Algorithm::kBinomial, endpoint.rank(), 4, 2, 5});
    run(broadcast, endpoint, arguments(input.data(), copy.data(), DType::kF32, ReduceOp::kAvg));
    EXPECT_EQ(copy, std::vector<float>(5, 3.0f)) << "a broadcast does not average";
  });
}

// Float addition depends on the order. Magnitudes differ enough that another order changes the sum.
TEST(Executor, GivesTheSameBitsOnEveryRankAndInEveryRun) {
  constexpr int kCount = 257;
  for (const int world : {3, 6, 8}) {
    for (const Algorithm algorithm : schedule::algorithms()) {
      if (algorithm == Algorithm::kDirect || !supports(algorithm, Collective::kAllReduce)) continue;
      std::vector<std::vector<float>> results(2 * world, std::vector<float>(kCount));
      on_ranks(world, [&](MailEndpoint& endpoint) {
        std::mt19937 random(endpoint.rank());
        std::vector<float> input(kCount);
        for (float& x : input)
          x = std::ldexp(static_cast<float>(random() % 1000) - 500.0f,
                         static_cast<int>(random() % 40));
        const auto steps =
            make({Collective::kAllReduce, algorithm, endpoint.rank(), world, 0, kCount});
        for (const int time : {0, 1})
          run(steps, endpoint, arguments(input.data(), results[2 * endpoint.rank() + time].data()));
      });
      for (const auto& result : results) {
        EXPECT_EQ(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)), 0)
            << to_string(algorithm) << " over " << world;
      }
    }
  }
}

// The result equals kernels::reduce on all inputs, for any number of ranks.
// BackendOptions::ordered_sums relies on it.
TEST(Executor, AddsAlongTheBalancedTreeWithTheShardedAlgorithm) {
  constexpr std::int64_t kCount = 12 * 9 * 8 * 7;  // whole blocks in every world
  for (const int world : {2, 3, 4, 6, 7, 8}) {
    std::vector<std::vector<float>> inputs(static_cast<std::size_t>(world),
                                           std::vector<float>(kCount));
    std::vector<const void*> sources;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      std::mt19937 random(static_cast<unsigned>(rank));
      for (float& x : inputs[rank])
        x = std::ldexp(static_cast<float>(random() % 1000) - 500.0f,
                       static_cast<int>(random() % 40));
      sources.push_back(inputs[rank].data());
    }
    std::vector<float> wanted(kCount);
    void* to = wanted.data();
    kernels::reduce(&to, 1, sources.data(), world, {.count = kCount});
    on_ranks(world, [&](MailEndpoint& endpoint) {
      const int rank = endpoint.rank();
      const void* const mine = sources[static_cast<std::size_t>(rank)];
      const std::int64_t block = kCount / world;
      std::vector<float> all(kCount), part(static_cast<std::size_t>(block));
      run(make({Collective::kAllReduce, Algorithm::kSharded, rank, world, 0, kCount}), endpoint,
          arguments(mine, all.data()));
      EXPECT_EQ(all, wanted) << world;
      run(make({Collective::kReduceScatter, Algorithm::kSharded, rank, world, 0, block}), endpoint,
          arguments(mine, part.data()));
      EXPECT_EQ(part, std::vector<float>(wanted.begin() + rank * block,
                                         wanted.begin() + (rank + 1) * block))
          << world;
    });
  }
}

// x86 keeps the payload of the first of two NaNs, and min and max keep one of two zeros. So the
// bits show the order of operands.
TEST(Executor, KeepsTheOrderOfOperands) {
  const float minus_zero_first[] = {-0.0f, 0.0f, -0.0f, 0.0f};
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum}) {
    std::vector<std::uint32_t> zero(4), nan(4);
    on_ranks(4, [&](MailEndpoint& endpoint) {
      const std::uint32_t payload = 0x7fc00001u + static_cast<std::uint32_t>(endpoint.rank());
      const auto steps =
          make({Collective::kAllReduce, Algorithm::kRecursiveDoubling, endpoint.rank(), 4, 0, 1});
      run(steps, endpoint,
          arguments(&minus_zero_first[endpoint.rank()], &zero[endpoint.rank()], DType::kF32, op));
      run(steps, endpoint, arguments(&payload, &nan[endpoint.rank()], DType::kF32, op));
    });
    EXPECT_THAT(zero, ::testing::Each(zero[0])) << to_string(op);
    EXPECT_THAT(nan, ::testing::Each(nan[0])) << to_string(op);
  }
}

// --- Errors ---

TEST(Executor, RejectsInvalidArgumentsBeforeAnyTransfer) {
  on_ranks(2, [](MailEndpoint& endpoint) {
    const int rank = endpoint.rank();
    std::vector<float> data(4);
    const auto message = [&](const schedule::Schedule& schedule,
                             const ExecutorArgs& args) -> std::string {
      try {
        run(schedule, endpoint, args);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::kInvalidArgument);
        return error.what();
      }
      return "";
    };
    const auto good = make({Collective::kAllReduce, Algorithm::kRing, rank, 2, 0, 4});
    const auto args = arguments(data.data(), data.data());
    EXPECT_THAT(message(make({Collective::kAllReduce, Algorithm::kDirect, rank, 2, 0, 4}), args),
                HasSubstr("another algorithm"));
    EXPECT_THAT(message(make({Collective::kAllReduce, Algorithm::kRing, 1 - rank, 2, 0, 4}), args),
                HasSubstr("the endpoint is rank"));
    EXPECT_THAT(message(make({Collective::kAllReduce, Algorithm::kRing, rank, 3, 0, 4}), args),
                HasSubstr("the endpoint is rank"));
    EXPECT_THAT(message(good, arguments(nullptr, data.data())), HasSubstr("null"));
    EXPECT_THAT(message(good, arguments(data.data(), data.data(), DType::kI32, ReduceOp::kAvg)),
                HasSubstr("int32 has no avg"));
    EXPECT_THAT(message(good, arguments(data.data(), data.data(), DType::kF32, ReduceOp::kBitOr)),
                HasSubstr("float32 has no bor"));
    schedule::Schedule damaged = good;
    damaged.steps.back().dst = 3;
    EXPECT_THAT(message(damaged, args), HasSubstr("outside its array"));
  });
}

TEST(Executor, ThrowsTheEndpointsErrorIfAPeerDoesNotTakePart) {
  Mail mail;
  MailEndpoint alone(mail, 0, 2);
  std::vector<float> data(4);
  auto args = arguments(data.data(), data.data());
  args.deadline = Deadline::in(1ms);
  try {
    run(make({Collective::kAllReduce, Algorithm::kRing, 0, 2, 0, 4}), alone, args);
    FAIL() << "ended without its peer";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kTimeout);
  }
}

}  // namespace executor_test
}  // namespace weft::net
