// Embedding, cross-entropy and attention over 2 and 4 ranks against torch's on one: 1e-10 relative
// and absolute in float64, 1e-5 in float32.
#include "weft/parallel/tensor/attention.h"

#include <torch/nn/functional.h>
#include <torch/nn/modules/embedding.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/counted_calls.h"
#include "weft/parallel/tensor/testing/parity.h"
#include "weft/parallel/tensor/vocabulary.h"

namespace weft::parallel {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using comm::CountedCalls;
using tensor_parity::expect_close;
using tensor_parity::kSeed;
using tensor_parity::on_ranks;
using tensor_parity::wave;
using testing::HasSubstr;

TEST(TensorEmbedding, EqualsLibtorchWithAPaddedVocabularyAndASplitOrWholeSequence) {
  torch::manual_seed(kSeed);
  nn::Embedding whole(11, 6);
  whole->to(at::kDouble);
  const at::Tensor ids = torch::tensor({{0, 10, 3, 3}, {7, 5, 10, 2}}),
                   factors = wave({2, 4, 6}, 0.3);
  const at::Tensor y = whole->forward(ids);
  (y * factors).sum().backward();
  for (const int ranks : {1, 2, 4}) {
    on_ranks(ranks, [&](const TensorParallel& tp) {
      Embedding plain(EmbeddingOptions{.vocabulary = 11, .features = 6}, tp);
      const Slice slice = plain->slices().at("weight");
      EXPECT_TRUE(
          torch::equal(whole_of(plain->weight, slice, tp), whole->weight.detach().to(at::kFloat)));
      EXPECT_EQ(plain->weight.size(0), slice.part(ranks));
      plain->to(at::kDouble);
      const at::Tensor out = plain->forward(ids);
      expect_close(out, y, "rows");
      (out * factors).sum().backward();
      expect_close(whole_of(plain->weight.grad(), slice, tp), whole->weight.grad(), "gradient");

      Embedding split(
          EmbeddingOptions{.vocabulary = 11, .features = 6, .sequence = Sequence::kSplit}, tp);
      split->to(at::kDouble);
      split->weight.set_data(plain->weight.detach());
      const at::Tensor part = split->forward(ids);
      expect_close(part, slice_of(y.detach(), {1, 4}, tp), "part");
      (part * slice_of(factors, {1, 4}, tp)).sum().backward();
      expect_close(split->weight.grad(), plain->weight.grad(), "gradient with the sequence split");
      EXPECT_THAT(refusal([&] {
                    plain->forward(torch::tensor({{0, 11}}));
                  }),
                  HasSubstr("id 11 is outside the vocabulary of 11"));
    });
  }
}

struct LossCase {
  int64_t vocabulary = 11;
  double smoothing = 0;
  LossReduction reduction = LossReduction::kMean;
  at::ScalarType type = at::kDouble;
};

at::Tensor torchs(const at::Tensor& logits, const at::Tensor& target, const LossCase& c) {
  auto options = F::CrossEntropyFuncOptions().ignore_index(-7).label_smoothing(c.smoothing);
  if (c.reduction == LossReduction::kMean) options.reduction(torch::kMean);
  if (c.reduction == LossReduction::kSum) options.reduction(torch::kSum);
  if (c.reduction == LossReduction::kNone) options.reduction(torch::kNone);
  return F::cross_entropy(logits.flatten(0, 1), target.flatten(), options)
      .view(c.reduction == LossReduction::kNone ? target.sizes() : at::IntArrayRef{});
}

// Logits are far from 0, so that their plain exponentials would overflow in both types.
void compare_loss(int ranks, const LossCase& c) {
  const at::Tensor target =
      torch::tensor({{0, 10, -7, 3}, {7, -7, 2, 5}}).clamp_max(c.vocabulary - 1);
  const at::Tensor whole = (wave({2, 4, c.vocabulary}, 0.4) * 9 + 900).to(c.type).requires_grad_();
  const at::Tensor loss = torchs(whole, target, c);
  (loss * wave(loss.sizes(), 1, c.type)).sum().backward();
  on_ranks(ranks, [&](const TensorParallel& tp) {
    const Slice slice{2, c.vocabulary};
    const at::Tensor mine = slice_of(whole, slice, tp).detach().clone().requires_grad_();
    const CrossEntropyOptions options{c.vocabulary, c.smoothing, -7, c.reduction};
    const at::Tensor got = cross_entropy(mine, target, options, tp);
    expect_close(got, loss, "loss");
    (got * wave(got.sizes(), 1, c.type)).sum().backward();
    expect_close(whole_of(mine.grad(), slice, tp), whole.grad(), "gradient");
    const int64_t part = slice.part(ranks),
                  there = std::clamp<int64_t>(c.vocabulary - tp.rank() * part, 0, part);
    EXPECT_EQ(mine.grad().narrow(2, there, part - there).abs().sum().item<double>(), 0)
        << "padding has a gradient";
  });
}

TEST(TensorCrossEntropy, EqualsTorchWithLabelSmoothingAndIgnoredTargets) {
  for (const int ranks : {1, 2, 4}) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const auto reduction :
           {LossReduction::kMean, LossReduction::kSum, LossReduction::kNone}) {
        compare_loss(ranks, {11, smoothing, reduction, at::kDouble});
      }
      compare_loss(ranks, {8, smoothing, LossReduction::kMean, at::kFloat});
      // More rows than are computed at a time.
      compare_loss(ranks, {100'000, smoothing, LossReduction::kMean, at::kDouble});
      // Of 4 ranks the last one has only padding.
      compare_loss(ranks, {5, smoothing, LossReduction::kMean, at::kDouble});
    }
  }
}

void compare_16_bits(at::ScalarType type, double scale, const TensorParallel& tp) {
  at::Tensor narrow = (wave({4, 300}, 0.4) * 9).to(type);
  narrow[1][7] = 17;
  narrow.requires_grad_();
  const at::Tensor wide = narrow.detach().to(at::kDouble).requires_grad_(),
                   target = torch::tensor({1, 7, -100, 299});
  const at::Tensor got = cross_entropy(narrow, target, {}, tp),
                   wanted = cross_entropy(wide, target, {}, tp);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_NEAR(got.item<double>(), wanted.item<double>(), 1e-6);
  got.backward(torch::full_like(got, scale));
  wanted.backward(torch::full_like(wanted, scale));
  EXPECT_EQ(narrow.grad().scalar_type(), type);
  const at::Tensor away = (narrow.grad().to(at::kDouble) - wide.grad()).abs();
  EXPECT_TRUE(away.le(wide.grad().abs() * 0.008 + 1e-7).all().item<bool>()) << type << " " << scale;
  EXPECT_LT(wide.grad()[1][7].item<double>(), -1e-6);
}

// Also the gradient of a target that is almost certain, and gradients of a scaled loss.
TEST(TensorCrossEntropy, ComputesLogitsOf16BitsInFloat32) {
  on_ranks(1, [](const TensorParallel& tp) {
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      for (const double scale : {1.0, 65536.0}) compare_16_bits(type, scale, tp);
    }
  });
}

// The probability 1.5e-8 of the other token is less than half of the least float16.
TEST(TensorCrossEntropy, ScalesGradientsOfFloat16BeforeTheyAreRounded) {
  on_ranks(1, [](const TensorParallel& tp) {
    const at::Tensor logits =
        torch::tensor({0.0, -18.0}).view({1, 2}).to(at::kHalf).requires_grad_();
    const at::Tensor loss = cross_entropy(logits, torch::zeros({1}, at::kLong), {}, tp);
    loss.backward(torch::full_like(loss, 65536));
    const double wanted = 65536 / (1 + std::exp(18.0));  // 0.001
    EXPECT_NEAR(logits.grad()[0][1].item<double>(), wanted, 1e-6);
  });
}

// Masked tokens. The first column of each rank is that of targets on another one.
TEST(TensorCrossEntropy, EqualsTorchWithLogitsOfMinusInfinity) {
  const LossCase c{8, 0, LossReduction::kMean, at::kDouble};
  at::Tensor whole = wave({1, 3, 8}, 0.4);
  for (const int column : {0, 4})
    whole.select(2, column).fill_(-std::numeric_limits<double>::infinity());
  whole.requires_grad_();
  const at::Tensor target = torch::tensor({{1, 5, 7}}), loss = torchs(whole, target, c);
  loss.backward();
  on_ranks(2, [&](const TensorParallel& tp) {
    const Slice slice{2, c.vocabulary};
    const at::Tensor mine = slice_of(whole, slice, tp).detach().clone().requires_grad_(),
                     got = cross_entropy(mine, target, {}, tp);
    expect_close(got, loss, "loss");
    got.backward();
    expect_close(whole_of(mine.grad(), slice, tp), whole.grad(), "gradient");
  });
}

TEST(TensorCrossEntropy, SendsThreeOrFourNumbersPerTarget) {
  on_ranks(2, [](const TensorParallel& tp) {
    const at::Tensor logits = wave({6, 500}, 0, at::kFloat).requires_grad_(),
                     target = torch::arange(6);
    CountedCalls counted;
    const at::Tensor plain = cross_entropy(logits, target, {}, tp);
    EXPECT_EQ(counted.take(),
              (std::map<std::string, CountedCalls::Sum>{{"all_reduce", {2, (1 + 2) * 6 * 4}}}));
    const at::Tensor smooth = cross_entropy(logits, target, {.label_smoothing = 0.1}, tp);
    EXPECT_EQ(counted.take(),
              (std::map<std::string, CountedCalls::Sum>{{"all_reduce", {2, (1 + 3) * 6 * 4}}}));
    (plain + smooth).backward();
    EXPECT_TRUE(counted.take().empty());
  });
}

TEST(TensorCrossEntropy, RejectsInvalidTargets) {
  on_ranks(2, [](const TensorParallel& tp) {
    const at::Tensor logits = wave({3, 4}, 0);
    const auto of = [&](const at::Tensor& target, const CrossEntropyOptions& options) {
      return refusal([&] { cross_entropy(logits, target, options, tp); });
    };
    EXPECT_THAT(of(torch::tensor({1, 8, 2}), {}), HasSubstr("id 8 is outside the vocabulary of 8"));
    EXPECT_THAT(of(torch::tensor({1, 7, 2}), {.vocabulary = 7}), HasSubstr("id 7 is outside"));
    EXPECT_THAT(of(torch::tensor({1, 2, 3}), {.vocabulary = 9}),
                HasSubstr("8 columns on all ranks"));
    EXPECT_THAT(of(torch::tensor({1, 2}), {}), HasSubstr("leading dimensions"));
    EXPECT_THAT(of(torch::tensor({1, 2, 3}), {.label_smoothing = 1}), HasSubstr("label_smoothing"));
    EXPECT_THAT(of(torch::full({3}, -100), {}), HasSubstr("all targets are ignored"));
    EXPECT_EQ(cross_entropy(logits, torch::full({3}, -100), {.reduction = LossReduction::kSum}, tp)
                  .item<double>(),
              0);
  });
}

// Reference: attention on one process by libtorch's primitives only.
at::Tensor attention_by_hand(const AttentionImpl& layer, const at::Tensor& x,
                             const at::Tensor& documents) {
  const AttentionOptions& o = layer.options;
  const int64_t b = x.size(0), t = x.size(1), d = o.head_width, share = o.heads / o.kv_heads;
  const at::Tensor q =
      torch::linear(x, layer.q_proj->weight, layer.q_proj->bias).view({b, t, o.heads, d});
  const at::Tensor k =
      torch::linear(x, layer.k_proj->weight, layer.k_proj->bias).view({b, t, o.kv_heads, d});
  const at::Tensor v =
      torch::linear(x, layer.v_proj->weight, layer.v_proj->bias).view({b, t, o.kv_heads, d});
  // Rotation by complex numbers: the pair (i, i + d/2) turns by position · theta^(-2i/d).
  const auto turn = [&](const at::Tensor& y) {
    if (o.rope_theta == 0) return y;
    const at::Tensor angle = torch::arange(t, at::kDouble).view({t, 1, 1}) *
                             torch::pow(o.rope_theta, torch::arange(d / 2, at::kDouble) *
                                                          (-2.0 / static_cast<double>(d)));
    const at::Tensor z = torch::complex(y.narrow(3, 0, d / 2), y.narrow(3, d / 2, d / 2)) *
                         torch::polar(torch::ones_like(angle), angle);
    return torch::cat({torch::real(z), torch::imag(z)}, 3);
  };
  const at::Tensor keys = turn(k).repeat_interleave(share, 2),
                   values = v.repeat_interleave(share, 2);
  at::Tensor scores =
      torch::einsum("bihd,bjhd->bhij", {turn(q), keys}) / std::sqrt(static_cast<double>(d));
  at::Tensor hidden = torch::ones({t, t}, at::kBool).triu(1);
  if (documents.defined())
    hidden = hidden.logical_or(documents.unsqueeze(2).ne(documents.unsqueeze(1))).unsqueeze(1);
  scores = scores.masked_fill(hidden, -INFINITY);
  const at::Tensor y =
      torch::einsum("bhij,bjhd->bihd", {scores.softmax(-1), values}).reshape({b, t, o.heads * d});
  return torch::linear(y, layer.o_proj->weight, layer.o_proj->bias);
}

struct AttentionCase {
  int64_t kv_heads = 4;
  double rope = 0;
  bool bias = true, packed = false;
};

// The parameters of a layer that are slices, and their joined gradients.
void compare_attention(int ranks, const AttentionCase& c, Sequence sequence) {
  AttentionOptions options{.width = 12,
                           .heads = 4,
                           .kv_heads = c.kv_heads,
                           .head_width = 6,
                           .bias = c.bias,
                           .rope_theta = c.rope};
  torch::manual_seed(kSeed);
  Attention whole(options, TensorParallel());
  whole->to(at::kDouble);
  const at::Tensor x = wave({2, 8, 12}, 0.1), factors = wave({2, 8, 12}, 0.6);
  const at::Tensor documents =
      c.packed ? torch::tensor({{4, 4, 4, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 2, 2}}) : at::Tensor();
  const at::Tensor y = attention_by_hand(*whole, x, documents);
  (y * factors).sum().backward();
  options.sequence = sequence;
  on_ranks(ranks, [&](const TensorParallel& tp) {
    Attention layer(options, tp);
    layer->to(at::kDouble);
    const auto mine = [&](const at::Tensor& t) {
      return sequence == Sequence::kSplit ? slice_of(t, {1, 8}, tp) : t;
    };
    const at::Tensor out = layer->forward(mine(x), documents);
    (out * mine(factors)).sum().backward();
    expect_close(out.detach(), mine(y.detach()), "output");
    const auto lie = slices(*layer);
    for (const auto& parameter : layer->named_parameters()) {
      const auto slice = lie.find(parameter.key());
      const at::Tensor gradient = parameter.value().grad();
      expect_close(slice == lie.end() ? gradient : whole_of(gradient, slice->second, tp),
                   whole->named_parameters()[parameter.key()].grad(), parameter.key());
    }
  });
}

TEST(TensorAttention, EqualsOneProcessWithGroupedQueriesRotationAndPackedDocuments) {
  for (const int ranks : {1, 2, 4}) {
    for (const auto sequence : {Sequence::kWhole, Sequence::kSplit}) {
      compare_attention(ranks, {}, sequence);
      compare_attention(ranks, {.kv_heads = 2, .rope = 100}, sequence);
      compare_attention(ranks, {.kv_heads = 1, .rope = 10000, .bias = false, .packed = true},
                        sequence);
    }
  }
}

TEST(TensorAttention, HasTheSameDropoutForEverySplitOfHeads) {
  const AttentionOptions options{.width = 8, .heads = 4, .dropout = 0.4};
  const at::Tensor x = wave({2, 6, 8}, 0.1);
  at::Tensor y;
  on_ranks(
      1, [&](const TensorParallel& tp) { y = Attention(options, tp)->forward(x.to(at::kFloat)); });
  on_ranks(4, [&](const TensorParallel& tp) {
    Attention layer(options, tp);
    expect_close(layer->forward(x.to(at::kFloat)).detach(), y.detach(), "with dropout");
    layer->eval();
    EXPECT_FALSE(torch::allclose(layer->forward(x.to(at::kFloat)), y)) << "evaluation drops none";
  });
}

TEST(TensorAttention, TrainsAfterAForwardInInferenceMode) {
  on_ranks(1, [](const TensorParallel& tp) {
    Attention layer(AttentionOptions{.width = 8, .heads = 2, .rope_theta = 100}, tp);
    layer->to(at::kDouble);
    const at::Tensor x = wave({2, 6, 8}, 0.1), factors = wave({2, 6, 8}, 0.6);
    const auto gradient = [&] {
      layer->zero_grad();
      (layer->forward(x) * factors).sum().backward();
      return layer->q_proj->weight.grad().clone();
    };
    const at::Tensor wanted = gradient();
    {
      const torch::InferenceMode inference;
      layer->forward(wave({2, 9, 8}, 0.1));  // more positions than before
    }
    expect_close(gradient(), wanted, "gradient");
  });
}

TEST(TensorAttention, RejectsHeadsThatDoNotDivide) {
  on_ranks(2, [](const TensorParallel& tp) {
    EXPECT_THAT(refusal([&] { Attention(AttentionOptions{.width = 9, .heads = 3}, tp); }),
                HasSubstr("3 does not divide by 2 ranks; the nearest that do are 2 and 4"));
    EXPECT_THAT(
        refusal([&] { Attention(AttentionOptions{.width = 8, .heads = 4, .kv_heads = 3}, tp); }),
        HasSubstr("3 heads of keys and values"));
    EXPECT_THAT(refusal([&] {
                  Attention(AttentionOptions{.width = 12, .heads = 4, .rope_theta = 10}, tp);
                }),
                HasSubstr("even head width"));
    EXPECT_THAT(refusal([&] { Attention(AttentionOptions{.width = 10, .heads = 4}, tp); }),
                HasSubstr("a width of 10 does not divide by 4 heads"));
  });
}

}  // namespace
}  // namespace weft::parallel
