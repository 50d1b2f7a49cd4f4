// Reductions over every transport: averages of float16, and operations that a type does not have.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/testing/refusal.h"
#include "weft/comm/group.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/over_tcp.h"

namespace weft::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The sum of the ranks is infinite in float16.
void average_halves(const Group& group) {
  const double mine = 40'000 + 32 * group.rank();
  for (const std::int64_t n : {3, 50'000}) {
    const at::Tensor mean = at::full({n}, 40'032, at::kHalf);
    at::Tensor t = at::full({n}, mine, at::kHalf);
    group.all_reduce(t, ReduceOp::kAvg);
    EXPECT_TRUE(at::equal(t, mean));
    t.fill_(mine);
    group.all_reduce_async(t, ReduceOp::kAvg)->wait();
    EXPECT_TRUE(at::equal(t, mean));
    t.fill_(mine);
    group.prepare_all_reduce(t, ReduceOp::kAvg).run();
    EXPECT_TRUE(at::equal(t, mean));
    t.fill_(mine);
    group.reduce(t, 2, ReduceOp::kAvg);
    EXPECT_EQ(t[n - 1].item<double>(), group.rank() == 2 ? 40'032 : mine);
    group.reduce_scatter(t, at::full({3 * n}, mine, at::kHalf), ReduceOp::kAvg);
    EXPECT_TRUE(at::equal(t, mean));
  }
}

TEST(Averages, OfFloat16WhoseSumIsOutOfRangeAreExact) {
  replicate(3, average_halves);
  replicate_over_tcp(3, average_halves);
}

TEST(Averages, OfFloat16BesideFloat32AreAnErrorThatShowsBoth) {
  replicate_over_tcp(2, [](const Group& group) {
    at::Tensor t = at::ones({4}, group.rank() == 0 ? at::kHalf : at::kFloat);
    EXPECT_THAT(refusal([&] { group.all_reduce(t, ReduceOp::kAvg); }),
                AllOf(HasSubstr("float16[4]"), HasSubstr("float32[4]")));
  });
}

void refuse(const Group& group) {
  for (const std::int64_t n : {1, 100'000}) {
    at::Tensor whole = at::ones({n}, at::kLong), numbers = at::ones({n});
    const auto no_average = AllOf(HasSubstr("int64 has no avg"), HasSubstr("convert the data"));
    EXPECT_THAT(refusal([&] { group.reduce(whole, 0, ReduceOp::kAvg); }), no_average);
    EXPECT_THAT(refusal([&] { group.all_reduce(whole, ReduceOp::kAvg); }), no_average);
    EXPECT_THAT(
        refusal([&] { group.reduce_scatter(whole, at::ones({2 * n}, at::kLong), ReduceOp::kAvg); }),
        no_average);
    EXPECT_THAT(refusal([&] { group.reduce(numbers, 1, ReduceOp::kBitOr); }),
                HasSubstr("float32 has no bor"));
  }
  at::Tensor sum = at::ones({2});
  group.all_reduce(sum);  // the group is still usable
  EXPECT_EQ(sum[1].item<float>(), 2);
}

TEST(Reductions, ThatATypeDoesNotHaveAreRefusedOnEveryRankBeforeAnyTransfer) {
  replicate(2, refuse);
  replicate_over_tcp(2, refuse);
}

}  // namespace
}  // namespace weft::comm
