// A stage's backward in two parts gives the same bits as in one, and each part does its own
// multiplications.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "weft/comm/testing/tensors.h"
#include "weft/parallel/pipeline/internal/graph.h"
#include "weft/parallel/recompute/recompute.h"

namespace weft::parallel::internal {
namespace {

namespace nn = torch::nn;
using comm::wave;

struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 3; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(6, 6)));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    conv = register_module("conv", nn::Conv1d(nn::Conv1dOptions(1, 2, 3).padding(1)));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (auto& p : parameters()) p.copy_(wave(p.sizes(), ++phase) * 0.4);
  }
  // A residual, a layer used twice, a tensor that passes unchanged, and one that depends on
  // parameters only.
  Tensors forward(const Tensors& in) {
    at::Tensor x = in[0];
    x = x + torch::gelu(layers[0](norm(x)));
    x = torch::tanh(layers[1](x));
    if (again) {
      x = recompute([this](const at::Tensor& t) { return torch::relu(layers[2](t)); }, x);
    } else {
      x = torch::relu(layers[2](x));
    }
    x = layers[1](x) * in[1] + conv(x.unsqueeze(1)).sum(1);
    return {x, in[1], layers[0]->weight.square(), in[2]};
  }
  bool again = false;
  std::vector<nn::Linear> layers;
  nn::LayerNorm norm{nullptr};
  nn::Conv1d conv{nullptr};
};
TORCH_MODULE(Net);

std::vector<at::Tensor> gradients(bool split, bool again, bool input_needs_gradient) {
  Net net;
  net->again = again;
  std::vector<at::Tensor> all;
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const Tensors in{wave({4, 6}, micro_batch).requires_grad_(input_needs_gradient),
                     wave({4, 6}, 7).requires_grad_(input_needs_gradient), torch::arange(3)};
    StageGraph graph([&](const Tensors& x) { return net(x); }, in);
    const Tensors at_outputs{wave({4, 6}, 1), input_needs_gradient ? wave({4, 6}, 2) : at::Tensor(),
                             wave({6, 6}, 3), at::Tensor()};
    graph.drop_values();
    const Tensors got = split ? graph.backward_input(at_outputs) : graph.backward(at_outputs);
    for (int i = 0; i < 2; ++i) {
      if (input_needs_gradient) all.push_back(got[static_cast<std::size_t>(i)]);
    }
    EXPECT_FALSE(got[2].defined());
    if (split && micro_batch == 0) {
      for (const auto& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
    }
    if (split) graph.backward_weight();
  }
  for (const auto& p : net->parameters()) all.push_back(p.grad());
  return all;
}

TEST(StageGraph, GivesTheSameBitsInTwoPartsAsInOne) {
  for (const bool input : {true, false}) {
    const auto whole = gradients(false, false, input);
    for (const bool again : {false, true}) {
      const auto parts = gradients(true, again, input);
      ASSERT_EQ(parts.size(), whole.size());
      for (std::size_t i = 0; i < whole.size(); ++i)
        EXPECT_TRUE(torch::equal(parts[i], whole[i])) << i << (again ? " recomputed" : "");
    }
  }
}

// Records the names of operations of this thread while this lives.
class Count {
 public:
  Count() {
    counts.clear();
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& fn)
                                       -> std::unique_ptr<at::ObserverContext> {
          ++counts[fn.name()];
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~Count() { at::removeCallback(handle_); }
  int of(const std::string& name) const { return counts[name]; }

 private:
  static thread_local std::map<std::string, int> counts;
  at::CallbackHandle handle_;
};
thread_local std::map<std::string, int> Count::counts;

TEST(StageGraph, MultipliesForInputsFirstForWeightsLaterAndNothingTwice) {
  nn::Sequential net(nn::Linear(5, 5), nn::Tanh(), nn::Linear(5, 5), nn::Tanh(), nn::Linear(5, 5));
  const auto fn = [&](const Tensors& x) { return Tensors{net->forward(x[0])}; };
  const Tensors in{torch::ones({2, 5}).requires_grad_()}, at_outputs{torch::ones({2, 5})};
  const auto multiplied = [](const std::function<void()>& what) {
    const Count count;
    what();
    return std::pair(count.of("aten::mm"), count.of("aten::tanh_backward"));
  };
  StageGraph whole(fn, in), parts(fn, in);
  EXPECT_EQ(multiplied([&] { whole.backward(at_outputs); }), std::pair(6, 2));
  EXPECT_EQ(multiplied([&] { parts.backward_input(at_outputs); }), std::pair(3, 2));
  EXPECT_EQ(multiplied([&] { parts.backward_weight(); }), std::pair(3, 0));
}

TEST(StageGraph, MayBeginWithALayerThatWorksInPlace) {
  Net net;
  const at::Tensor values = wave({4, 6}, 1), at_output = wave({4, 6}, 2);
  at::Tensor whole = values.clone().requires_grad_();
  net->layers[0](torch::relu(whole)).backward(at_output);
  for (const bool split : {false, true}) {
    net->zero_grad();
    const Tensors in{values.clone().requires_grad_()};
    StageGraph graph(
        [&](const Tensors& x) {
          at::Tensor own = x[0];
          return Tensors{net->layers[0](own.relu_())};
        },
        in);
    const Tensors got = split ? graph.backward_input({at_output}) : graph.backward({at_output});
    if (split) graph.backward_weight();
    EXPECT_TRUE(torch::equal(got[0], whole.grad()));
    EXPECT_TRUE(torch::allclose(net->layers[0]->weight.grad(), at_output.t().mm(values.relu()),
                                1e-12, 1e-12));
  }
}

TEST(StageGraph, ReturnsZerosForAnInputWithoutInfluence) {
  for (const bool split : {false, true}) {
    const Tensors in{torch::ones({2}).requires_grad_(), torch::ones({3}).requires_grad_()};
    StageGraph graph([](const Tensors& x) { return Tensors{x[0] * 2}; }, in);
    const Tensors got =
        split ? graph.backward_input({torch::ones({2})}) : graph.backward({torch::ones({2})});
    EXPECT_TRUE(torch::equal(got[0], torch::full({2}, 2.0)));
    EXPECT_TRUE(torch::equal(got[1], torch::zeros({3})));
  }
}

}  // namespace
}  // namespace weft::parallel::internal
