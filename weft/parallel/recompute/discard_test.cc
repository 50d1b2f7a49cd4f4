// Freeing a result between forward and backward changes no bit of any gradient.
#include "weft/parallel/recompute/discard.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/tensors.h"
#include "weft/parallel/recompute/recompute.h"

namespace weft::parallel {
namespace discard_test {

using comm::wave;
using testing::HasSubstr;

struct Net {
  torch::nn::Linear up{6, 24}, down{24, 6};
  int runs = 0;
  std::size_t between = 0;  // bytes of the activation after forward

  Net() {
    const at::NoGradGuard no_grad;
    for (torch::nn::Linear layer : {up, down}) {
      layer->to(at::kDouble);
      layer->weight.copy_(wave(layer->weight.sizes(), 1));
      layer->bias.copy_(wave(layer->bias.sizes(), 2));
    }
  }
  at::Tensor forward(const at::Tensor& x, bool discards) {
    const at::Tensor h = up(x);
    const auto activation = [this, h] {
      ++runs;
      return torch::gelu(h);
    };
    const at::Tensor a = activation(), y = down(a);
    if (discards) discard(a, activation, y);
    between = a.storage().nbytes();
    return y;
  }
  std::vector<at::Tensor> gradients(const at::Tensor& x) const {
    return {x.grad(), up->weight.grad(), up->bias.grad(), down->weight.grad(), down->bias.grad()};
  }
};

void expect_same_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
}

TEST(Discard, FreesTheMemoryUntilBackwardAndGivesTheSameBits) {
  std::vector<at::Tensor> want;
  for (const bool discards : {false, true}) {
    Net net;
    const at::Tensor x = wave({3, 5, 6}, 0.5).requires_grad_();
    for (int step = 0; step < 2; ++step)
      (net.forward(x, discards) * wave({3, 5, 6}, step)).sum().backward();
    EXPECT_EQ(net.between, discards ? 0U : 3U * 5 * 24 * 8);
    EXPECT_EQ(net.runs, discards ? 4 : 2);
    if (discards) {
      expect_same_bits(net.gradients(x), want);
    } else {
      want = net.gradients(x);
    }
  }
}

TEST(Discard, ComputesOnceForInputsFirstAndWeightsLater) {
  Net net;
  const at::Tensor x = wave({3, 6}, 0.5).requires_grad_();
  net.forward(x, false).sum().backward();
  const at::Tensor y = net.forward(x, true).sum();
  const auto first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true);
  const auto later = torch::autograd::grad({y}, {net.down->weight, net.up->weight});
  EXPECT_EQ(net.runs, 3);
  expect_same_bits({first[0], later[0], later[1]},
                   {x.grad(), net.down->weight.grad(), net.up->weight.grad()});
}

TEST(Discard, DoesNothingWithoutGradients) {
  Net net;
  {
    const at::NoGradGuard no_grad;
    net.forward(wave({3, 6}, 0), true);
    EXPECT_GT(net.between, 0U);
  }
  for (const auto& parameter : net.up->parameters()) parameter.requires_grad_(false);
  net.forward(wave({3, 6}, 0), true)
      .sum()
      .backward();  // the activation needs no gradient, the product's weight does
  EXPECT_GT(net.between, 0U);
  EXPECT_EQ(net.runs, 2);
}

// Forward runs in bfloat16 under autocast. Without autocast, the second run would use float32.
TEST(Discard, RecomputesUnderTheAutocastOfForward) {
  const at::Tensor weight = wave({6, 6}, 1).to(at::kFloat);
  std::vector<at::Tensor> gradients;
  for (const int way : {0, 1, 2}) {
    const at::Tensor x = wave({4, 6}, 0.5).to(at::kFloat).requires_grad_();
    const auto cheap = [weight](const at::Tensor& t) {
      return torch::matmul(t, weight).softmax(-1);
    };
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor a = way == 1 ? recompute(cheap, x) : cheap(x), y = a * a;
    if (way == 2)
      discard(
          a, [cheap, x] { return cheap(x); }, y);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(a.scalar_type(), at::kBFloat16);
    y.sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    gradients.push_back(x.grad());
  }
  EXPECT_TRUE(torch::equal(gradients[1], gradients[0]));
  EXPECT_TRUE(torch::equal(gradients[2], gradients[0]));
  const at::Tensor x = wave({4, 6}, 0.5).to(at::kFloat).requires_grad_(),
                   a = torch::matmul(x, weight).softmax(-1);
  (a * a).sum().backward();
  EXPECT_FALSE(torch::equal(x.grad(), gradients[0])) << "autocast makes no difference";
}

TEST(Discard, KeepsTheGradientsOfALaterForwardUnderTheSameAutocast) {
  const at::Tensor weight = wave({6, 6}, 1).to(at::kFloat).requires_grad_(),
                   x = wave({4, 6}, 0.5).to(at::kFloat);
  const auto cheap = [weight](const at::Tensor& t) { return torch::matmul(t, weight).softmax(-1); };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor a = cheap(x), y = a * a;
  discard(
      a, [cheap, x] { return cheap(x); }, y);
  at::autocast::clear_cache();
  y.sum().backward();
  const bool has_gradient = cheap(x).requires_grad();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(has_gradient);
}

TEST(Discard, RejectsAPartOfAnotherTensorAndAnotherShape) {
  const at::Tensor x = wave({4, 6}, 0).requires_grad_(), whole = x.sin(),
                   part = whole.narrow(0, 0, 2), of_part = part * part;
  EXPECT_THAT(refusal([&] {
                discard(
                    part, [&] { return part; }, of_part);
              }),
              HasSubstr("a part of another tensor"));
  const at::Tensor a = x.sin(), y = a * a;
  discard(
      a, [x] { return x.narrow(0, 0, 2).sin(); }, y);
  EXPECT_THAT(refusal([&] { y.sum().backward(); }), HasSubstr("another shape"));
}

}  // namespace discard_test
}  // namespace weft::parallel
