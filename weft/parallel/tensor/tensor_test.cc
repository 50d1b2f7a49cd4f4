// Collectives and layers over 2 and 4 ranks against libtorch's own layers on one: 1e-10 relative
// and absolute in float64, 1e-5 in float32.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>

#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/counted_calls.h"
#include "weft/parallel/tensor/collectives.h"
#include "weft/parallel/tensor/conv.h"
#include "weft/parallel/tensor/linear.h"
#include "weft/parallel/tensor/norm.h"
#include "weft/parallel/tensor/testing/parity.h"

namespace weft::parallel {
namespace {

namespace nn = torch::nn;
using comm::CountedCalls;
using tensor_parity::expect_close;
using tensor_parity::kSeed;
using tensor_parity::on_ranks;
using tensor_parity::wave;
using testing::HasSubstr;

// Rank r's own values, which every rank can compute.
at::Tensor of_rank(int rank, at::IntArrayRef sizes) { return wave(sizes, rank + 0.5); }
at::Tensor of_all(int ranks, at::IntArrayRef sizes) {
  at::Tensor sum = of_rank(0, sizes);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + of_rank(rank, sizes);
  return sum;
}

struct Passed {
  at::Tensor y, dx;
};
template <class Op>
Passed pass(const at::Tensor& x, const at::Tensor& dy, const Op& op) {
  const at::Tensor leaf = x.detach().clone().requires_grad_();
  const at::Tensor y = op(leaf);
  (y * dy).sum().backward();
  return {y.detach(), leaf.grad()};
}

TEST(TensorCollectives, AreEachOthersGradients) {
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [&](const TensorParallel& tp) {
      const std::vector<int64_t> all{3, 8, 2}, part{3, 8 / ranks, 2};
      const auto mine = [&](const at::Tensor& x) {
        return x.narrow(1, tp.rank() * part[1], part[1]);
      };
      const at::Tensor same = wave(all, 9), own = of_rank(tp.rank(), all), sum = of_all(ranks, all);
      auto got = pass(same, own, [&](const at::Tensor& x) { return copy_to(x, tp); });
      expect_close(got.y, same, "copy_to");
      expect_close(got.dx, sum, "copy_to's gradient");
      got = pass(own, same, [&](const at::Tensor& x) { return reduce_from(x, tp); });
      expect_close(got.y, sum, "reduce_from");
      expect_close(got.dx, same, "reduce_from's gradient");
      got = pass(same, mine(sum), [&](const at::Tensor& x) { return scatter_to(x, 1, tp); });
      expect_close(got.y, mine(same), "scatter_to");
      expect_close(got.dx, sum, "scatter_to's gradient");
      got = pass(mine(same), sum, [&](const at::Tensor& x) { return gather_from(x, -2, tp); });
      expect_close(got.y, same, "gather_from");
      expect_close(got.dx, mine(sum), "gather_from's gradient");
      got = pass(mine(same), own, [&](const at::Tensor& x) { return all_gather_from(x, 1, tp); });
      expect_close(got.y, same, "all_gather_from");
      expect_close(got.dx, mine(sum), "all_gather_from's gradient");
      got =
          pass(own, mine(same), [&](const at::Tensor& x) { return reduce_scatter_to(x, -2, tp); });
      expect_close(got.y, mine(sum), "reduce_scatter_to");
      expect_close(got.dx, same, "reduce_scatter_to's gradient");
    });
  }
}

// S = sum over ranks of c_r · d(sum y³)/dx_r with y = sum of x_r, so dS/dx_r = 6 y (sum of c_r).
TEST(TensorCollectives, HaveGradientsOfGradients) {
  on_ranks(2, [](const TensorParallel& tp) {
    const at::Tensor x = of_rank(tp.rank(), {4}).requires_grad_(), y = reduce_from(x, tp);
    const at::Tensor first =
        torch::autograd::grad({y.pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    (first * of_rank(tp.rank() + 2, {4})).sum().backward();
    expect_close(x.grad(), 6 * y.detach() * (of_rank(2, {4}) + of_rank(3, {4})),
                 "second derivative");
  });
}

TEST(TensorCollectives, AreTheTensorItselfInAGroupOfOne) {
  const TensorParallel alone;
  const at::Tensor x = wave({3, 5}, 0);
  for (const at::Tensor& y :
       {copy_to(x, alone), reduce_from(x, alone), scatter_to(x, 1, alone), gather_from(x, 1, alone),
        all_gather_from(x, 1, alone), reduce_scatter_to(x, 1, alone)}) {
    EXPECT_TRUE(y.is_same(x));
  }
  EXPECT_THAT(refusal([&] { alone.group(); }), HasSubstr("without a group"));
}

TEST(TensorCollectives, RejectSizesThatDoNotDivideAndNameTheNearest) {
  on_ranks(2, [](const TensorParallel& tp) {
    EXPECT_THAT(refusal([&] {
                  scatter_to(wave({3, 7}, 0), 1, tp);
                }),
                HasSubstr("7 does not divide by 2 ranks; the nearest that do are 6 and 8"));
    EXPECT_THAT(refusal([&] {
                  reduce_scatter_to(wave({1, 4}, 0), 0, tp);
                }),
                HasSubstr("the nearest that does is 2"));
    EXPECT_THAT(
        refusal([&] { Linear(LinearOptions{.in = 4, .out = 9, .split = Split::kColumn}, tp); }),
        HasSubstr("8 and 10"));
    EXPECT_THAT(
        refusal([&] { Linear(LinearOptions{.in = 3, .out = 8, .split = Split::kRow}, tp); }),
        HasSubstr("2 and 4"));
    EXPECT_THAT(
        refusal([&] { Conv2d(Conv2dOptions{.in = 3, .out = 8, .split = Split::kRow}, tp); }),
        HasSubstr("input channels"));
  });
}

// Joins the gradients of the parameters below `split` over the ranks, and compares them with those
// of a whole module with the same names.
void expect_gradients(const nn::Module& split, const nn::Module& whole, const TensorParallel& tp) {
  const auto lie = slices(split);
  const auto parameters = whole.named_parameters();
  for (const auto& mine : split.named_parameters()) {
    const auto slice = lie.find(mine.key());
    const at::Tensor gradient = mine.value().grad();
    ASSERT_TRUE(gradient.defined()) << mine.key();
    expect_close(slice == lie.end() ? gradient : whole_of(gradient, slice->second, tp),
                 parameters[mine.key()].grad(), mine.key());
  }
}

struct WholeNet : nn::Module {
  explicit WholeNet(bool bias, at::ScalarType type) {
    torch::manual_seed(kSeed);
    up = register_module("up", nn::Linear(nn::LinearOptions(6, 12).bias(bias)));
    down = register_module("down", nn::Linear(nn::LinearOptions(12, 6).bias(bias)));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    to(type);
  }
  at::Tensor forward(const at::Tensor& x) {
    return down->forward(torch::gelu(up->forward(norm->forward(x))));
  }
  nn::Linear up{nullptr}, down{nullptr};
  nn::LayerNorm norm{nullptr};
};

struct SplitNet : nn::Module {
  SplitNet(bool bias, Sequence sequence, const TensorParallel& tp, int chunks = 1) {
    up = register_module(
        "up",
        Linear(
            LinearOptions{
                .in = 6, .out = 12, .split = Split::kColumn, .bias = bias, .sequence = sequence},
            tp));
    down = register_module("down", Linear(LinearOptions{.in = 12,
                                                        .out = 6,
                                                        .split = Split::kRow,
                                                        .bias = bias,
                                                        .sequence = sequence,
                                                        .chunks = chunks},
                                          tp));
    norm = register_module("norm", LayerNorm(NormOptions{.features = 6, .sequence = sequence}, tp));
  }
  at::Tensor forward(const at::Tensor& x) {
    return down->forward(torch::gelu(up->forward(norm->forward(x))));
  }
  Linear up{nullptr}, down{nullptr};
  LayerNorm norm{nullptr};
};

void compare_net(int ranks, bool bias, Sequence sequence, at::ScalarType type, int chunks = 1) {
  WholeNet whole(bias, type);
  const at::Tensor input = wave({3, 8, 6}, 0.2, type), factors = wave({3, 8, 6}, 1.1, type);
  const at::Tensor x = input.clone().requires_grad_(), y = whole.forward(x);
  (y * factors).sum().backward();
  on_ranks(ranks, [&](const TensorParallel& tp) {
    SplitNet net(bias, sequence, tp, chunks);
    const Slice along{1, 8};
    const auto mine = [&](const at::Tensor& t) {
      return sequence == Sequence::kSplit ? slice_of(t, along, tp) : t;
    };
    const auto joined = [&](const at::Tensor& t) {
      return sequence == Sequence::kSplit ? whole_of(t, along, tp) : t;
    };
    for (const auto& [name, slice] : slices(net)) {
      const at::Tensor one = whole.named_parameters()[name].detach().to(at::kFloat);
      EXPECT_TRUE(torch::equal(whole_of(net.named_parameters()[name], slice, tp), one))
          << name << " starts with other bits";
    }
    net.to(type);
    const at::Tensor part = mine(input).clone().requires_grad_(), out = net.forward(part);
    (out * mine(factors)).sum().backward();
    expect_close(joined(out.detach()), y.detach(), "output");
    expect_close(joined(part.grad()), x.grad(), "input's gradient");
    expect_gradients(net, whole, tp);
  });
}

TEST(TensorLayers, StartWithLibtorchsBitsAndEqualTheWholeLayers) {
  for (const int ranks : {1, 2, 4}) {
    for (const auto sequence : {Sequence::kWhole, Sequence::kSplit}) {
      for (const auto type : {at::kDouble, at::kFloat}) compare_net(ranks, true, sequence, type);
      compare_net(ranks, false, sequence, at::kDouble);
    }
  }
}

// 5 does not divide 24 rows, and 3 does not divide the 4 or 2 positions of a part, so pieces are
// uneven, and some would be empty.
TEST(TensorLayers, ComputeTheSameInChunks) {
  for (const int ranks : {1, 2, 4}) {
    compare_net(ranks, true, Sequence::kWhole, at::kDouble, 5);
    compare_net(ranks, true, Sequence::kSplit, at::kDouble, 3);
  }
  on_ranks(2, [](const TensorParallel& tp) {
    SplitNet net(false, Sequence::kWhole, tp, 4), sequence(false, Sequence::kSplit, tp, 4);
    constexpr int64_t kWhole = 3 * 8 * 6 * 4;
    CountedCalls counted;
    at::Tensor loss = net.forward(wave({3, 8, 6}, 0, at::kFloat)).sum();
    EXPECT_EQ(counted.take(),
              (std::map<std::string, CountedCalls::Sum>{{"all_reduce", {4, kWhole}}}));
    loss = sequence.forward(wave({3, 4, 6}, 0, at::kFloat)).sum();
    EXPECT_EQ(counted.take()["reduce_scatter"], (CountedCalls::Sum{4, kWhole}));
    loss.backward();
    EXPECT_EQ(counted.take()["all_gather"], (CountedCalls::Sum{4, kWhole / 2}));
    EXPECT_THAT(refusal([&] { Linear(LinearOptions{.chunks = 0}, tp); }),
                HasSubstr("chunks must be at least 1"));
  });
}

// bfloat16 on the CPU, while it lives.
struct InBfloat16 {
  InBfloat16() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~InBfloat16() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  InBfloat16(const InBfloat16&) = delete;
  InBfloat16& operator=(const InBfloat16&) = delete;
};

// Small integers, which bfloat16 adds without rounding.
at::Tensor integers(at::IntArrayRef sizes, std::int64_t phase) {
  const at::Tensor all = torch::arange(c10::multiply_integers(sizes)) * 3 + phase;
  return (all.remainder(5) - 2).view(sizes).to(at::kFloat);
}

TEST(TensorLayers, ComputeTheSameInChunksUnderAutocast) {
  for (const auto sequence : {Sequence::kWhole, Sequence::kSplit}) {
    on_ranks(2, [&](const TensorParallel& tp) {
      std::vector<at::Tensor> results;
      for (const int chunks : {1, 2}) {
        Linear layer(LinearOptions{.in = 8,
                                   .out = 6,
                                   .split = Split::kRow,
                                   .bias = false,
                                   .sequence = sequence,
                                   .chunks = chunks},
                     tp);
        {
          const at::NoGradGuard no_grad;
          layer->weight.copy_(integers(layer->weight.sizes(), tp.rank()));
        }
        const at::Tensor x = integers({3, 8, 4}, tp.rank() + 1).requires_grad_();
        at::Tensor y;
        {
          const InBfloat16 autocast;
          y = layer->forward(x);
        }
        EXPECT_EQ(y.scalar_type(), at::kBFloat16);
        y.backward(integers(y.sizes(), 3).to(y.scalar_type()));
        for (const at::Tensor& one : {y.detach(), x.grad(), layer->weight.grad()})
          results.push_back(one);
      }
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(torch::equal(results[i], results[3 + i])) << i;
    });
  }
}

TEST(TensorLayers, GatherPaddedOutputsAndSplitWholeInputs) {
  torch::manual_seed(kSeed);
  nn::Linear first(6, 10), second(10, 8);
  nn::Sequential(first, second)->to(at::kDouble);
  const at::Tensor x = wave({5, 6}, 0.2);
  const at::Tensor y = second->forward(first->forward(x));
  y.sin().sum().backward();
  on_ranks(4, [&](const TensorParallel& tp) {
    Linear column(
        LinearOptions{
            .in = 6, .out = 10, .split = Split::kColumn, .gather_output = true, .pad = true},
        tp);
    Linear plain(LinearOptions{.in = 10, .out = 8}, tp);
    Linear row(
        LinearOptions{
            .in = 8, .out = 8, .split = Split::kRow, .bias = false, .input_is_parallel = false},
        tp);
    nn::Sequential(column, plain, row)->to(at::kDouble);
    EXPECT_EQ(column->weight.size(0), 3);
    const at::Tensor out = plain->forward(column->forward(x));
    expect_close(out, y, "output");
    out.sin().sum().backward();
    expect_close(whole_of(column->weight.grad(), column->slices().at("weight"), tp),
                 first->weight.grad(), "weight");
    expect_close(whole_of(column->bias.grad(), column->slices().at("bias"), tp), first->bias.grad(),
                 "bias");
    expect_close(plain->weight.grad(), second->weight.grad(), "whole weight");
    expect_close(row->forward(out.detach()), torch::linear(y, whole_of(row->weight, {1, 8}, tp)),
                 "row");
  });
}

TEST(TensorLayers, SendTheDocumentedBytes) {
  using Sums = std::map<std::string, CountedCalls::Sum>;
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [&](const TensorParallel& tp) {
      // Bytes of an activation, and of a norm's or bias's gradient.
      constexpr int64_t kWhole = 3 * 8 * 6 * 4, kParameter = 6 * 4;
      SplitNet net(true, Sequence::kWhole, tp), sequence(true, Sequence::kSplit, tp);
      const int64_t part = kWhole / ranks;
      CountedCalls counted;
      at::Tensor loss = net.forward(wave({3, 8, 6}, 0, at::kFloat)).sum();
      EXPECT_EQ(counted.take(), (Sums{{"all_reduce", {1, kWhole}}}));
      loss.backward();
      EXPECT_EQ(counted.take(), (Sums{{"all_reduce", {1, kWhole}}}));
      loss = sequence.forward(wave({3, 8 / ranks, 6}, 0, at::kFloat)).sum();
      EXPECT_EQ(counted.take(), (Sums{{"all_gather", {1, part}}, {"reduce_scatter", {1, kWhole}}}));
      loss.backward();
      EXPECT_EQ(counted.take(), (Sums{{"all_gather", {1, part}},
                                      {"reduce_scatter", {1, kWhole}},
                                      {"all_reduce", {3, 3 * kParameter}}}));
    });
  }
}

TEST(TensorLayers, EqualTheWholeConvolutionWithSplitChannels) {
  torch::manual_seed(kSeed);
  nn::Conv2d first(nn::Conv2dOptions(3, 8, 3).padding(1).stride(2)),
      second(nn::Conv2dOptions(8, 5, 3).dilation(2));
  nn::Sequential(first, second)->to(at::kDouble);
  const at::Tensor x = wave({2, 3, 13, 13}, 0.2).requires_grad_();
  const at::Tensor y = second->forward(torch::relu(first->forward(x)));
  y.sin().sum().backward();
  for (const int ranks : {1, 2, 4}) {
    for (const bool chained : {true, false}) {
      on_ranks(ranks, [&](const TensorParallel& tp) {
        Conv2d column(Conv2dOptions{.in = 3,
                                    .out = 8,
                                    .split = Split::kColumn,
                                    .stride = 2,
                                    .padding = 1,
                                    .gather_output = !chained},
                      tp);
        Conv2d row(Conv2dOptions{.in = 8,
                                 .out = 5,
                                 .split = Split::kRow,
                                 .dilation = 2,
                                 .input_is_parallel = chained},
                   tp);
        nn::Sequential(column, row)->to(at::kDouble);
        const at::Tensor mine = x.detach().clone().requires_grad_();
        const at::Tensor out = row->forward(torch::relu(column->forward(mine)));
        out.sin().sum().backward();
        expect_close(out, y, "output");
        expect_close(mine.grad(), x.grad(), "input's gradient");
        expect_gradients(*column, *first, tp);
        expect_gradients(*row, *second, tp);
      });
    }
  }
}

TEST(TensorLayers, NormalizeByTheRootMeanSquareWithTheSequenceSplit) {
  const at::Tensor x = wave({2, 4, 6}, 0.2), factors = wave({2, 4, 6}, 1.4),
                   weight = wave({6}, 2).requires_grad_();
  (torch::rms_norm(x, {6}, weight, 1e-6) * factors).sum().backward();
  on_ranks(2, [&](const TensorParallel& tp) {
    RMSNorm norm(NormOptions{.features = 6, .eps = 1e-6, .sequence = Sequence::kSplit}, tp);
    norm->to(at::kDouble);
    norm->weight.set_data(weight.detach().clone());
    (norm->forward(slice_of(x, {1, 4}, tp)) * slice_of(factors, {1, 4}, tp)).sum().backward();
    expect_close(norm->weight.grad(), weight.grad(), "weight");
  });
}

TEST(TensorGradients, AreClippedByTheNormOfTheWholeModelLikeTorch) {
  WholeNet whole(true, at::kDouble);
  const at::Tensor x = wave({3, 8, 6}, 0.2);
  whole.forward(x).square().sum().backward();
  const double norm = nn::utils::clip_grad_norm_(whole.parameters(), 0.5);
  EXPECT_GT(norm, 0.5);
  on_ranks(2, [&](const TensorParallel& tp) {
    SplitNet net(true, Sequence::kWhole, tp);
    net.to(at::kDouble);
    net.forward(x).square().sum().backward();
    EXPECT_NEAR(clip_grad_norm(net, 0.5, tp), norm, 1e-10 * norm);
    expect_gradients(net, whole, tp);
  });
}

}  // namespace
}  // namespace weft::parallel
