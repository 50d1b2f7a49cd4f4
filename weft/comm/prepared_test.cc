#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include "weft/base/testing/refusal.h"
#include "weft/comm/group.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/exercise.h"
#include "weft/comm/testing/fork_ranks.h"

namespace weft::comm {
namespace {

using namespace std::chrono_literals;
using internal::exercise_prepared;
using internal::expect;
using internal::of_rank;
using internal::sum_over;
using testing::HasSubstr;

// Small and large tensors, tensors that are not contiguous and complex ones.
void exercise_forms(const Group& group) {
  for (const int64_t n : {int64_t{3}, int64_t{40'000}}) {
    exercise_prepared(group, at::empty({n, 2}));
    exercise_prepared(group, at::empty({2, n}).t());
    exercise_prepared(group, at::empty({n}, at::kLong));
    exercise_prepared(group, at::empty({n}, at::kComplexFloat));
  }
  exercise_prepared(group, at::empty(at::IntArrayRef{}));
  exercise_prepared(group, at::empty({0}));
  at::Tensor mean = of_rank(group.rank(), {5}), largest = mean.clone();
  group.prepare_all_reduce(mean, ReduceOp::kAvg).run();
  group.prepare_all_reduce(largest, ReduceOp::kMax).run();
  expect(at::allclose(mean, sum_over(group.size(), {5}) / group.size()), "a prepared average");
  expect(at::equal(largest, of_rank(group.size() - 1, {5})), "a prepared maximum");
}

TEST(PreparedAllReduce, LeavesTheSumInItsTensorOnEveryCallAsThreads) {
  for (const int world : {1, 2}) replicate(world, exercise_forms, 20s);
}

TEST(PreparedAllReduce, LeavesTheSumAsProcessesInSharedMemoryAndOverTcp) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = fork_ranks(2, transport, [](const Group& group) {
      exercise_forms(group);
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(2, 0)) << transport;
  }
}

TEST(PreparedAllReduce, IsTheCallAllReduceOfTheOtherRanksInTheOrderOfTheCalls) {
  replicate(2, [](const Group& group) {
    at::Tensor first = of_rank(group.rank(), {4}), second = of_rank(group.rank(), {4});
    if (group.rank() == 0) {
      const auto before = group.backend().getSequenceNumberForGroup();
      PreparedAllReduce sum = group.prepare_all_reduce(second);
      const auto pending = group.all_reduce_async(first);
      sum.run();
      pending->wait();
      EXPECT_EQ(group.backend().getSequenceNumberForGroup(), before + 2);
    } else {
      group.all_reduce(first);
      group.all_reduce(second);
    }
    expect(at::equal(first, sum_over(2, {4})) && at::equal(second, sum_over(2, {4})), "a sum");
  });
}

TEST(PreparedAllReduce, OfAnotherShapeThanTheCallOfAPeerIsAnErrorWithBothOnEveryRank) {
  replicate(2, [](const Group& group) {
    PreparedAllReduce sum = group.prepare_all_reduce(at::ones({2 + group.rank()}));
    const std::string why = refusal([&] { sum.run(); });
    EXPECT_THAT(why, HasSubstr("all_reduce(sum, float32[2])"));
    EXPECT_THAT(why, HasSubstr("all_reduce(sum, float32[3])"));
  });
}

TEST(PreparedAllReduce, RefusesTensorsThatItCannotReduceAtThePreparation) {
  replicate(1, [](const Group& group) {
    const auto why = [&](const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
      return refusal([&] { group.prepare_all_reduce(tensor, op); });
    };
    EXPECT_THAT(why(at::ones({1}).expand({4})), HasSubstr("elements of the tensor share memory"));
    EXPECT_THAT(why({}), HasSubstr("the tensor is undefined"));
    EXPECT_THAT(why(at::ones({2}).to_sparse()), HasSubstr("not dense; call all_reduce()"));
    EXPECT_THAT(why(at::empty({2}, at::kFloat8_e4m3fn)), HasSubstr("Float8_e4m3fn cannot be"));
    EXPECT_THAT(why(at::ones({2}, at::kInt), ReduceOp::kAvg), HasSubstr("int32 has no avg"));
    EXPECT_THAT(why(at::ones({2}), ReduceOp::kBitOr), HasSubstr("float32 has no bor"));
    EXPECT_THAT(why(at::empty({2}, at::TensorOptions(at::kMeta))),
                HasSubstr("not a tensor on meta"));
    EXPECT_THAT(refusal([&] { group.prepare_all_reduce(at::ones({2}), ReduceOp::kSum, -1ms); }),
                HasSubstr("the timeout is negative"));
  });
}

TEST(PreparedAllReduce, RefusesATensorOfAnotherFormAndFollowsItsMemory) {
  replicate(2, [](const Group& group) {
    at::Tensor tensor = at::zeros({2, 3});
    PreparedAllReduce sum = group.prepare_all_reduce(tensor);
    tensor.set_data(of_rank(group.rank(), {2, 3}));
    sum.run();
    expect(at::equal(tensor, sum_over(2, {2, 3})), "the sum in new memory");

    const auto expect_refused = [&](const std::string& now) {
      const std::string why = refusal([&] { sum.run(); });
      EXPECT_EQ(why, refusal([&] { sum.start(); }));
      EXPECT_THAT(why, HasSubstr("Float[2, 3] on cpu with strides [3, 1] at prepare_all_reduce()"));
      EXPECT_THAT(why, HasSubstr("is now " + now + "; prepare the call again"));
    };
    tensor.resize_({5});
    expect_refused("Float[5] on cpu with strides [1]");
    tensor.resize_({2, 3}).t_();
    expect_refused("Float[3, 2] on cpu with strides [1, 3]");
    tensor.set_data(at::zeros({2, 3}, at::kDouble));
    expect_refused("Double[2, 3] on cpu with strides [3, 1]");
    tensor.set_data(of_rank(group.rank(), {2, 3}));
    sum.run();
    expect(at::equal(tensor, sum_over(2, {2, 3})), "the sum after the form is as before");
  });
}

TEST(PreparedAllReduce, RefusesCallsOutOfOrder) {
  replicate(2, [](const Group& group) {
    at::Tensor tensor = of_rank(group.rank(), {3});
    PreparedAllReduce sum = group.prepare_all_reduce(tensor);
    EXPECT_TRUE(sum.is_done());
    EXPECT_THAT(refusal([&] { sum.wait(); }), HasSubstr("wait() without start()"));
    sum.start();
    for (const auto& next :
         {std::function<void()>([&] { sum.start(); }), std::function<void()>([&] { sum.run(); })})
      EXPECT_THAT(refusal(next), HasSubstr("start() was called, and wait() was not"));
    sum.wait();
    expect(at::equal(tensor, sum_over(2, {3})), "the sum");
  });
}

TEST(PreparedAllReduce, EndsWithItsOwnTimeoutAndAfterItTheGroupHasFailed) {
  replicate(2, [](const Group& group) {
    at::Tensor tensor = at::ones({3});
    PreparedAllReduce sum = group.prepare_all_reduce(tensor, ReduceOp::kSum, 50ms);
    if (group.rank() == 1) return;
    const auto code_of = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const Error& error) {
        return error.code();
      }
      return Errc::kInternal;
    };
    EXPECT_EQ(code_of([&] { sum.run(); }), Errc::kTimeout);
    EXPECT_NE(code_of([&] { sum.run(); }), Errc::kInternal);
    sum.start();
    EXPECT_NE(code_of([&] { sum.wait(); }), Errc::kInternal);
    EXPECT_TRUE(sum.is_done());
  });
}

TEST(PreparedAllReduce, WithoutATimeoutWaitsForALateRank) {
  replicate(2, [](const Group& group) {
    at::Tensor tensor = of_rank(group.rank(), {3});
    PreparedAllReduce sum =
        group.prepare_all_reduce(tensor, ReduceOp::kSum, std::chrono::milliseconds::max());
    if (group.rank() == 1) std::this_thread::sleep_for(20ms);
    sum.run();
    expect(at::equal(tensor, sum_over(2, {3})), "the sum");
  });
}

TEST(PreparedAllReduce, OfALostRankIsPeerLostOnTheOthers) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = fork_ranks(2, transport, [](const Group& group) {
      at::Tensor tensor = at::ones({3});
      PreparedAllReduce sum = group.prepare_all_reduce(tensor);
      sum.run();
      if (group.rank() == 1) raise(SIGKILL);
      for (int call = 0; call < 2; ++call) {
        try {
          sum.run();
          return 1;
        } catch (const Error& error) {
          if (error.code() != Errc::kPeerLost && (call == 0 || error.code() != Errc::kAborted))
            return 2;
        }
      }
      return 0;
    });
    EXPECT_EQ(codes, (std::vector<int>{0, -SIGKILL})) << transport;
  }
}

}  // namespace
}  // namespace weft::comm
