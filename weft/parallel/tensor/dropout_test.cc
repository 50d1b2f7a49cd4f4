// Dropout over the ranks of a group has the same mask as one process.
#include "weft/parallel/tensor/dropout.h"

#include "weft/base/testing/refusal.h"
#include "weft/parallel/tensor/testing/parity.h"

namespace weft::parallel {
namespace dropout_test {

using tensor_parity::on_ranks;
using testing::HasSubstr;

TEST(TensorDropout, DrawsTheSameMaskAsOneProcess) {
  const at::Tensor x = torch::ones({3, 8, 5}, at::kDouble);
  TensorParallel alone;
  alone.seed_dropout(77);
  const at::Tensor first = dropout(x, 0.25, {}, alone), second = dropout(x, 0.25, {}, alone);
  EXPECT_FALSE(torch::equal(first, second));
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [&](const TensorParallel& tp) {
      tp.seed_dropout(77);
      EXPECT_TRUE(
          torch::equal(dropout(slice_of(x, {1, 8}, tp), 0.25, 1, tp), slice_of(first, {1, 8}, tp)));
      EXPECT_TRUE(torch::equal(dropout(x, 0.25, {}, tp), second)) << "replicated";
      tp.set_draw(0);
      Dropout layer(DropoutOptions{.p = 0.25, .sequence = Sequence::kSplit}, tp);
      EXPECT_TRUE(
          torch::equal(layer->forward(slice_of(x, {1, 8}, tp)), slice_of(first, {1, 8}, tp)))
          << "repeated";
      layer->eval();
      EXPECT_TRUE(layer->forward(x).is_same(x));
      EXPECT_EQ(tp.draw(), 1u);
    });
  }
}

TEST(TensorDropout, DrawsTheSameMaskAsOneProcessForAnyPositions) {
  const at::Tensor x = torch::ones({3, 9, 5}, at::kDouble);
  TensorParallel alone;
  alone.seed_dropout(77);
  const at::Tensor whole = dropout(x, 0.25, {}, alone);
  for (const at::Tensor& positions :
       {torch::tensor({0, 1, 7, 8}), torch::tensor({4}), torch::tensor({2, 3, 5, 6})}) {
    alone.set_draw(0);
    const at::Tensor part =
        dropout_of_part(x.index_select(1, positions), 0.25, {-2, 9, positions}, alone);
    EXPECT_TRUE(torch::equal(part, whole.index_select(1, positions)));
  }
  EXPECT_THAT(refusal([&] {
                dropout_of_part(x, 0.25, {-2, 9, torch::tensor({1})}, alone);
              }),
              HasSubstr("one for each of the 9 entries"));
}

TEST(TensorDropout, EqualsOneProcessWithContextParallelism) {
  const at::Tensor x = torch::ones({2, 8, 3}, at::kDouble);
  TensorParallel alone;
  alone.seed_dropout(77);
  const at::Tensor whole = dropout(x, 0.25, {}, alone);
  replicate(4, [&](const Group& group) {  // two parts of the sequence, each split again
    const int place = group.rank() / 2, slice = group.rank() % 2;
    const TensorParallel tp(group.subgroup({2 * place, 2 * place + 1}, "tp"), 77);
    const ContextParallel cp(group.subgroup({slice, slice + 2}, "cp"));
    Dropout layer(DropoutOptions{.p = 0.25}, tp, cp),
        split(DropoutOptions{.p = 0.25, .sequence = Sequence::kSplit}, tp, cp);
    const at::Tensor mine = cp.part(whole, 1);
    EXPECT_TRUE(torch::equal(layer->forward(cp.part(x, 1)), mine));
    tp.set_draw(0);
    EXPECT_TRUE(torch::equal(split->forward(slice_of(cp.part(x, 1), {1, 4}, tp)),
                             slice_of(mine, {1, 4}, tp)));
  });
}

TEST(TensorDropout, KeepsTheFractionAndTheMeanAndRejectsAProbabilityOfOne) {
  const TensorParallel alone;
  const at::Tensor x = dropout(torch::ones({1 << 20}), 0.3, {}, alone);
  // A binomial fraction's standard deviation is sqrt(0.3 · 0.7 / 2^20) = 0.00045: five of them.
  EXPECT_NEAR(x.eq(0).to(at::kDouble).mean().item<double>(), 0.3, 0.0023);
  EXPECT_NEAR(x.max().item<double>(), 1 / 0.7, 1e-6);
  EXPECT_THAT(refusal([&] { dropout(x, 1, {}, alone); }), HasSubstr("p must be in [0, 1)"));
  EXPECT_THAT(refusal([&] { Dropout(DropoutOptions{.p = -1}, alone); }),
              HasSubstr("p must be in [0, 1)"));
}

}  // namespace dropout_test
}  // namespace weft::parallel
