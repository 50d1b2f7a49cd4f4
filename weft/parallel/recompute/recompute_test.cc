// A recomputed block gives the same bits as the block itself, holds less memory, and is an ordinary
// part of the graph.
#include "weft/parallel/recompute/recompute.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/tensors.h"
#include "weft/engine/data_parallel.h"
#include "weft/parallel/tensor/dropout.h"

namespace weft::parallel {
namespace recompute_test {

namespace nn = torch::nn;
using testing::HasSubstr;

at::Tensor wave(at::IntArrayRef sizes, double phase, at::ScalarType type = at::kFloat) {
  return comm::wave(sizes, phase, type);
}

enum class Wrap { kNone, kBlock, kPart, kNested };

// Residual blocks with dropout. The bytes of live tensors computed inside a block are counted.
struct NetImpl : nn::Module {
  NetImpl(Wrap wrap_, at::ScalarType type) : wrap(wrap_) {
    for (int i = 0; i < 3; ++i) {
      up.push_back(register_module("up" + std::to_string(i), nn::Linear(6, 24)));
      down.push_back(register_module("down" + std::to_string(i), nn::Linear(24, 6)));
    }
    to(type);
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (auto& p : parameters()) p.copy_(wave(p.sizes(), ++phase) * 0.3);
  }
  at::Tensor middle(std::size_t i, const at::Tensor& x) {
    return torch::dropout(torch::gelu(up[i]->forward(x)), 0.3, is_training());
  }
  at::Tensor block(std::size_t i, const at::Tensor& x) {
    const auto part = [this, i](const at::Tensor& t) { return middle(i, t); };
    const at::Tensor h =
        wrap == Wrap::kPart || wrap == Wrap::kNested ? recompute(part, x) : part(x);
    return torch::dropout(down[i]->forward(h), 0.2, is_training()) + x;
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < up.size(); ++i) {
      const auto whole = [this, i](const at::Tensor& t) { return block(i, t); };
      x = wrap == Wrap::kBlock || wrap == Wrap::kNested ? recompute(whole, x) : whole(x);
    }
    return x;
  }
  Wrap wrap;
  std::vector<nn::Linear> up, down;
};
TORCH_MODULE(Net);

struct Passed {
  // The result, the gradients of the input and of the parameters, and a random draw afterwards.
  std::vector<at::Tensor> values;
};
Passed pass(Wrap wrap, at::ScalarType type, bool input_needs_gradient) {
  Net net(wrap, type);
  const at::Tensor x = wave({5, 6}, 0.5, type).requires_grad_(input_needs_gradient);
  torch::manual_seed(3);
  Passed passed;
  for (int step = 0; step < 2; ++step) {  // gradients accumulate
    const at::Tensor y = net(x);
    y.square().sum().backward();
    passed.values.push_back(y.detach());
  }
  for (const auto& p : net->parameters()) passed.values.push_back(p.grad());
  if (input_needs_gradient) passed.values.push_back(x.grad());
  passed.values.push_back(torch::rand({2}));
  return passed;
}

TEST(Recompute, GivesTheBitsOfThePlainBlockWithDropoutAndRestoresTheGenerator) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const bool input : {true, false}) {
      const auto plain = pass(Wrap::kNone, type, input).values;
      for (const Wrap wrap : {Wrap::kBlock, Wrap::kPart, Wrap::kNested}) {
        const auto again = pass(wrap, type, input).values;
        ASSERT_EQ(again.size(), plain.size());
        for (std::size_t i = 0; i < plain.size(); ++i)
          EXPECT_TRUE(torch::equal(again[i], plain[i])) << i;
      }
    }
  }
}

// Counts live tensors, to measure what a graph keeps.
struct Counting : torch::autograd::Function<Counting> {
  static inline int alive = 0, most = 0;
  struct Mark : torch::CustomClassHolder {
    Mark() { most = std::max(most, ++alive); }
    ~Mark() override { --alive; }
  };
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    ctx->saved_data["mark"] = c10::IValue::make_capsule(c10::make_intrusive<Mark>());
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& g) {
    ctx->saved_data.clear();
    return {g[0] * 2};
  }
};

struct Held {
  int after_forward = 0, most = 0;
};
Held held(int blocks, int parts, bool wrap) {
  Counting::most = 0;
  at::Tensor x = torch::ones({2}).requires_grad_();
  const auto block = [parts](at::Tensor t) {
    for (int i = 0; i < parts; ++i) t = Counting::apply(t);
    return t;
  };
  for (int i = 0; i < blocks; ++i) x = wrap ? recompute(block, x) : block(x);
  Held result{Counting::alive, 0};
  x.sum().backward();
  result.most = Counting::most;
  EXPECT_EQ(Counting::alive, 0);
  return result;
}

TEST(Recompute, HoldsTheTensorsOfOneBlockInsteadOfAll) {
  const Held plain = held(8, 5, false), again = held(8, 5, true);
  EXPECT_EQ(plain.after_forward, 40);
  EXPECT_EQ(plain.most, 40);
  EXPECT_EQ(again.after_forward, 0);
  EXPECT_EQ(again.most, 5);
}

TEST(Recompute, SupportsAnyInputsAndSeveralResults) {
  const auto fn = [](const Tensors& in) {
    const at::Tensor h = in[0].index_select(0, in[1]);
    return Tensors{in[2].defined() ? h * in[2] : h.sin(), in[1] + 1, h.square().sum()};
  };
  for (const bool third : {true, false}) {
    std::vector<at::Tensor> gradients;
    for (const bool again : {false, true}) {
      const at::Tensor table = wave({4, 3}, 0.2).requires_grad_(), rows = torch::tensor({2, 0, 2});
      const Tensors in{table, rows, third ? wave({3, 3}, 1) : at::Tensor()};
      const Tensors out = again ? recompute_all(fn, in) : fn(in);
      ASSERT_EQ(out.size(), 3);
      EXPECT_TRUE(torch::equal(out[1], rows + 1));
      EXPECT_FALSE(out[1].requires_grad());
      out[2].backward({}, /*retain_graph=*/true);  // the first result gets no gradient now
      (out[0].sum() + out[2]).backward();
      gradients.push_back(table.grad());
    }
    EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
  }
}

TEST(Recompute, NeedsAGradientOnlyIfThePlainFunctionDoes) {
  int runs = 0;
  const auto fn = [&](const at::Tensor& x) {
    ++runs;
    return x.sin();
  };
  EXPECT_FALSE(recompute(fn, torch::ones({2})).requires_grad());
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(recompute(fn, torch::ones({2}).requires_grad_()).requires_grad());
  }
  EXPECT_EQ(runs, 2);
  nn::Linear layer(2, 2);
  const at::Tensor y = recompute([&](const at::Tensor& x) { return layer(x); }, torch::ones({2}));
  EXPECT_TRUE(y.requires_grad());
  layer->weight.requires_grad_(false);
  y.sum().backward();
  EXPECT_TRUE(layer->bias.grad().defined());
}

TEST(Recompute, RunsHooksOnceForEachBackwardAlsoOfASharedParameter) {
  nn::Linear layer(3, 3);
  int before = 0, after = 0;
  layer->weight.register_hook([&](const at::Tensor& g) {
    ++before;
    return g * 2;
  });
  struct After : torch::autograd::PostAccumulateGradHook {
    explicit After(int& count) : count_(count) {}
    void operator()(const torch::autograd::Variable&) override { ++count_; }
    int& count_;
  };
  torch::autograd::impl::set_post_acc_grad_hooks(layer->weight, std::make_unique<After>(after));
  const at::Tensor x = wave({2, 3}, 0);
  const auto fn = [&](const at::Tensor& t) { return torch::tanh(layer(t)); };
  fn(fn(x)).sum().backward();
  const at::Tensor plain = layer->weight.grad().clone();
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 1);
  layer->zero_grad();
  recompute(fn, recompute(fn, x)).sum().backward();
  EXPECT_TRUE(torch::equal(layer->weight.grad(), plain));
  EXPECT_EQ(before, 2);
  EXPECT_EQ(after, 2);
}

struct InBfloat16 {
  InBfloat16() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~InBfloat16() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

// Autocast's cache would give the second call the cast of the weight that the first call has made.
TEST(Recompute, SharesAParameterWithOtherCallsUnderOneAutocast) {
  nn::Linear layer(8, 8);
  const at::Tensor x = wave({4, 8}, 0);
  const auto fn = [&](const at::Tensor& t) { return torch::tanh(layer(t)); };
  const auto gradients = [&](bool first, bool second) {
    at::Tensor y;
    {
      const InBfloat16 autocast;
      const at::Tensor h = first ? recompute(fn, x) : fn(x);
      if (!first && !second) at::autocast::clear_cache();
      y = second ? recompute(fn, h) : fn(h);
    }
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return torch::autograd::grad({y.sum()}, {layer->weight, layer->bias});
  };
  const auto plain = gradients(false, false);
  for (const auto& [first, second] : {std::pair{true, true}, {false, true}, {true, false}}) {
    const auto got = gradients(first, second);
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_TRUE(torch::equal(got[i], plain[i])) << first << second << i;
  }
}

TEST(Recompute, RecomputesOnceForInputsFirstAndWeightsLater) {
  nn::Linear layer(3, 3);
  int runs = 0;
  const auto fn = [&](const at::Tensor& t) {
    ++runs;
    return torch::tanh(layer(t));
  };
  const at::Tensor x = wave({2, 3}, 0).requires_grad_();
  const auto plain = torch::autograd::grad({fn(x).sum()}, {x, layer->weight, layer->bias});
  const at::Tensor y = recompute(fn, x).sum();
  const auto inputs = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true);
  EXPECT_FALSE(layer->weight.grad().defined());
  const auto weights = torch::autograd::grad({y}, {layer->weight, layer->bias});
  EXPECT_EQ(runs, 3);  // plain run, first run, second run
  EXPECT_TRUE(torch::equal(inputs[0], plain[0]));
  EXPECT_TRUE(torch::equal(weights[0], plain[1]));
  EXPECT_TRUE(torch::equal(weights[1], plain[2]));
}

TEST(Recompute, RestoresOtherStateSuchAsTheDropoutOfSplitLayers) {
  std::vector<at::Tensor> gradients;
  for (const bool again : {false, true}) {
    const TensorParallel tp;
    tp.seed_dropout(7);
    const at::Tensor x = wave({64}, 0).requires_grad_();
    const auto fn = [&](const at::Tensor& t) { return dropout(t.sin(), 0.5, std::nullopt, tp); };
    const RecomputeOptions options{.random = false, .preserve = {preserve_draws(tp)}};
    const at::Tensor h = again ? recompute_with(options, fn, x) : fn(x);
    dropout(h, 0.5, std::nullopt, tp).sum().backward();
    EXPECT_EQ(tp.draw(), 2);
    gradients.push_back(x.grad());
  }
  EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
}

TEST(Recompute, RejectsFunctionsThatItCannotRepeat) {
  const at::Tensor x = wave({3}, 0).requires_grad_(), other = x * 2;
  EXPECT_THAT(refusal([&] { recompute([&](const at::Tensor& t) { return t + other; }, x); }),
              HasSubstr("pass it as an input"));
  int runs = 0;
  const at::Tensor y =
      recompute([&](const at::Tensor& t) { return t.narrow(0, 0, 3 - runs++); }, x).sum();
  EXPECT_THAT(refusal([&] { y.backward(); }), HasSubstr("other shapes"));
  const at::Tensor z = recompute([&](const at::Tensor& t) { return t.sin(); }, x).sum();
  EXPECT_THAT(refusal([&] { torch::autograd::grad({z}, {x}, {}, true, /*create_graph=*/true); }),
              HasSubstr("gradients of gradients"));
}

TEST(Recompute, RejectsFunctionsThatChangeTheirInput) {
  const at::Tensor weight = wave({3}, 0).requires_grad_();
  const at::Tensor x = wave({2, 3}, 1);
  EXPECT_THAT(refusal([&] {
                recompute([&](const at::Tensor& t) { return t.div_(255).sub_(1) * weight; }, x);
              }),
              HasSubstr("changes its input in place"));
  // Without a second run, it may.
  const at::NoGradGuard no_grad;
  EXPECT_EQ(
      refusal([&] { recompute([&](const at::Tensor& t) { return t.div_(255) * weight; }, x); }),
      "accepted");
}

// Such as a mask that a block passes on to the next one.
TEST(Recompute, NoticesAChangeOfAnInputThatIsAlsoAResult) {
  const at::Tensor weight = wave({3}, 0).requires_grad_();
  const Tensors out = recompute_all(
      [&](const Tensors& in) {
        return Tensors{in[0] * weight * in[1], in[1]};
      },
      {wave({2, 3}, 1), torch::ones({2, 3})});
  out[1].mul_(2);
  EXPECT_THROW(out[0].sum().backward(), c10::Error);
}

// A wrapped net under data parallelism has the same bits as the plain net. Each gradient is
// reported once (a second report would be an error).
TEST(Recompute, TrainsUnderDataParallelismToTheSameWeights) {
  std::vector<at::Tensor> weights(2);
  for (const bool again : {false, true}) {
    replicate(2, [&](const Group& group) {
      Net net(again ? Wrap::kBlock : Wrap::kNone, at::kFloat);
      net->eval();  // torch's dropout uses one random generator for both threads
      auto model = engine::data_parallel(net, group);
      auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.05));
      for (int step = 0; step < 3; ++step) {
        model.forward(wave({4, 6}, step + 10.0 * group.rank())).square().mean().backward();
        optim.step();
        optim.zero_grad();
      }
      if (group.rank() == 0)
        weights[again ? 1 : 0] =
            nn::utils::parameters_to_vector(net->parameters()).detach().clone();
    });
  }
  EXPECT_TRUE(torch::equal(weights[0], weights[1]));
}

}  // namespace recompute_test
}  // namespace weft::parallel
