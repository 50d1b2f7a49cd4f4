// Compares with torch::nn::BatchNorm on the whole batch. Tolerance: 1e-5 in float32, 1e-10 in
// float64, relative and absolute.
#include "weft/parallel/batch_norm/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <numeric>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/comm/testing/tensors.h"

namespace weft::parallel {
namespace sync_batch_norm_test {

namespace nn = torch::nn;
using Average = engine::DataParallelOptions::Average;
using comm::expect_close;
using testing::HasSubstr;

constexpr int64_t kChannels = 3;

struct Case {
  std::vector<int64_t> split;  // samples of each rank
  std::vector<int64_t> inner;  // dimensions after the channels
  at::ScalarType type = at::kDouble;
  Average average = Average::kBySamples;
  nn::BatchNormOptions options{kChannels};

  int world() const { return static_cast<int>(split.size()); }
  int64_t total() const { return std::accumulate(split.begin(), split.end(), int64_t{0}); }
  int64_t first(int rank) const {
    return std::accumulate(split.begin(), split.begin() + rank, int64_t{0});
  }
  at::Tensor part(const at::Tensor& joined, int rank) const {
    return joined.narrow(0, first(rank), split[static_cast<size_t>(rank)]);
  }
};

// One batch, the factors of its loss, and the parameters, all of uneven size.
struct Problem {
  explicit Problem(const Case& c) {
    std::vector<int64_t> sizes{c.total(), kChannels};
    sizes.insert(sizes.end(), c.inner.begin(), c.inner.end());
    const auto numel = c10::multiply_integers(sizes);
    const auto wave = [&](double a, double b) {
      return (torch::arange(numel, at::kDouble) * a + b).sin().view(sizes).to(c.type);
    };
    x = wave(1.7, 0.3) * 2 + wave(0.01, 1.0) + 0.5;
    factors = wave(0.9, 2.0);
    weight = torch::tensor({0.5, -1.5, 2.0}, c.type);
    bias = torch::tensor({0.1, 0.0, -0.7}, c.type);
  }
  template <class Layer>
  void fill(Layer& layer) const {
    layer->to(x.scalar_type());
    torch::NoGradGuard guard;
    if (!layer->weight.defined()) return;
    layer->weight.copy_(weight);
    layer->bias.copy_(bias);
  }
  // Summed over the samples.
  static at::Tensor loss(const at::Tensor& y, const at::Tensor& factors) {
    return (y.sin() * factors).sum();
  }

  at::Tensor x, factors, weight, bias;
};

// Two steps of one layer on the whole batch (`layer`) and on the ranks' parts. All results must
// agree.
template <class BatchNorm>
void compare_with(const Case& c) {
  const Problem problem(c);
  BatchNorm layer(c.options);
  problem.fill(layer);
  auto x = problem.x.clone().requires_grad_();
  layer->forward(problem.x * 2 + 1);
  const auto y = layer->forward(x);
  (Problem::loss(y, problem.factors) / c.total()).backward();

  replicate(c.world(), [&](Group group) {
    const int rank = group.rank();
    const auto samples = static_cast<double>(c.split[static_cast<size_t>(rank)]);
    SyncBatchNorm sync(c.options, group, c.average);
    problem.fill(sync);
    auto mine = c.part(problem.x, rank).clone().requires_grad_();
    sync->forward(mine.detach() * 2 + 1);
    const auto out = sync->forward(mine);
    // The loss is a mean over the local batch, weighted by samples, or a share of the whole mean.
    const bool by_samples = c.average == Average::kBySamples;
    const double divisor = by_samples ? std::max(samples, 1.0) : static_cast<double>(c.total());
    const double share = by_samples ? samples / static_cast<double>(c.total()) : 1.0;
    (Problem::loss(out, c.part(problem.factors, rank)) / divisor).backward();

    expect_close(out, c.part(y, rank), "output");
    expect_close(mine.grad() * share, c.part(x.grad(), rank), "input gradient");
    if (c.options.affine()) {
      at::Tensor weight = sync->weight.grad() * share, bias = sync->bias.grad() * share;
      group.all_reduce(weight);
      group.all_reduce(bias);
      expect_close(weight, layer->weight.grad(), "weight gradient");
      expect_close(bias, layer->bias.grad(), "bias gradient");
    }
    if (c.options.track_running_stats()) {
      expect_close(sync->running_mean, layer->running_mean, "running mean");
      expect_close(sync->running_var, layer->running_var, "running variance");
      EXPECT_EQ(sync->num_batches_tracked.template item<int64_t>(), 2);
    }
  });
}

TEST(SyncBatchNorm, EqualsBatchNormOfTheWholeBatchWithUnevenBatches) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const auto& split : {std::vector<int64_t>{5, 2}, {1, 4, 3}}) {
      compare_with<nn::BatchNorm1d>({split, {}, type});
      compare_with<nn::BatchNorm1d>({split, {7}, type});
      compare_with<nn::BatchNorm2d>({split, {4, 3}, type});
      compare_with<nn::BatchNorm3d>({split, {2, 3, 2}, type});
    }
  }
}

TEST(SyncBatchNorm, SupportsRanksWithoutSamples) {
  for (const auto& split : {std::vector<int64_t>{0, 6}, {4, 0}, {3, 0, 2}}) {
    compare_with<nn::BatchNorm1d>({split, {}});
    compare_with<nn::BatchNorm2d>({split, {4, 3}});
    compare_with<nn::BatchNorm2d>({.split = split, .inner = {4, 3}, .average = Average::kSum});
  }
}

TEST(SyncBatchNorm, GivesTheGradientOfTheSumOfLossesIfGradientsAreSummed) {
  compare_with<nn::BatchNorm2d>({.split = {5, 2}, .inner = {4, 3}, .average = Average::kSum});
  compare_with<nn::BatchNorm2d>(
      {.split = {1, 4, 3}, .inner = {4, 3}, .average = Average::kByRanks});
}

TEST(SyncBatchNorm, HasBatchNormsOptions) {
  const nn::BatchNormOptions base(kChannels);
  for (const auto& options :
       {nn::BatchNormOptions(base).affine(false),
        nn::BatchNormOptions(base).track_running_stats(false),
        nn::BatchNormOptions(base).momentum(std::nullopt), nn::BatchNormOptions(base).momentum(0.4),
        nn::BatchNormOptions(base).eps(0.5)}) {
    compare_with<nn::BatchNorm2d>({.split = {3, 1}, .inner = {2, 3}, .options = options});
  }
}

TEST(SyncBatchNorm, SupportsBatchesThatAreNotContiguous) {
  const Problem problem({{4, 4}, {4, 6}});
  const auto joined = problem.x.transpose(2, 3);
  nn::BatchNorm2d layer(kChannels);
  layer->to(at::kDouble);
  const auto y = layer->forward(joined);
  replicate(2, [&](Group group) {
    SyncBatchNorm sync(nn::BatchNormOptions(kChannels), group);
    sync->to(at::kDouble);
    expect_close(sync->forward(joined.narrow(0, 4 * group.rank(), 4)),
                 y.narrow(0, 4 * group.rank(), 4), "transposed");
  });
}

TEST(SyncBatchNorm, ComputesHalfPrecisionInFloat32) {
  const Problem problem({{3, 3}, {8, 8}, at::kFloat});
  nn::BatchNorm2d layer(kChannels);
  const auto joined = problem.x.to(at::kBFloat16);
  const auto y = layer->forward(joined.to(at::kFloat));
  replicate(2, [&](Group group) {
    SyncBatchNorm sync(nn::BatchNormOptions(kChannels), group);
    const auto out = sync->forward(joined.narrow(0, 3 * group.rank(), 3));
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(
        at::equal(out, y.narrow(0, 3 * group.rank(), 3).to(at::kBFloat16)) ||
        at::allclose(out.to(at::kFloat), y.narrow(0, 3 * group.rank(), 3), 1.0 / 256, 1e-3));
  });
}

TEST(SyncBatchNorm, KeepsTheVarianceIfTheMeanIsAHundredMillionDeviations) {
  // A sum of squares would lose it: the last bit of 1e12 in float64 is worth 1e-4, but the variance
  // is 5e-5.
  const auto noise =
      (torch::arange(1200, at::kDouble) * 1.3).sin().view({100, kChannels, 4}) * 1e-2;
  const auto expected = noise.var({0, 2}, /*unbiased=*/true);
  replicate(2, [&](Group group) {
    SyncBatchNorm sync(nn::BatchNormOptions(kChannels).momentum(1.0), group);
    sync->to(at::kDouble);
    const auto x = noise + 1e6;
    sync->forward(group.rank() == 0 ? x.narrow(0, 0, 30) : x.narrow(0, 30, 70));
    EXPECT_TRUE(at::allclose(sync->running_var, expected, 1e-6, 0));
  });
}

TEST(SyncBatchNorm, EvaluatesWithRunningStatisticsAndWithoutCommunication) {
  const Problem problem({{4, 4}, {4, 3}});
  replicate(2, [&](Group group) {
    SyncBatchNorm sync(nn::BatchNormOptions(kChannels), group);
    problem.fill(sync);
    sync->forward(problem.x);
    nn::BatchNorm2d layer(kChannels);
    problem.fill(layer);
    layer->running_mean.copy_(sync->running_mean);
    layer->running_var.copy_(sync->running_var);
    sync->eval();
    layer->eval();
    // Only one rank runs: a collective would end with the timeout of replicate().
    if (group.rank() == 1)
      expect_close(sync->forward(problem.x), layer->forward(problem.x), "evaluation");
    EXPECT_EQ(sync->num_batches_tracked.item<int64_t>(), 1);
  });
}

template <typename F>
std::string message_of(const F& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(SyncBatchNorm, RejectsTooFewValuesWrongShapesAndSecondDerivatives) {
  replicate(2, [](Group group) {
    SyncBatchNorm sync(nn::BatchNormOptions(kChannels), group);
    EXPECT_THAT(message_of([&] {
                  sync->forward(torch::ones({group.rank(), kChannels}));
                }),
                HasSubstr("more than one value"));
    EXPECT_EQ(sync->num_batches_tracked.item<int64_t>(), 0);
    EXPECT_THAT(message_of([&] {
                  sync->forward(torch::ones({2, kChannels + 1}));
                }),
                HasSubstr("second of size 3"));
    EXPECT_THAT(message_of([&] { sync->forward(torch::ones({2})); }),
                HasSubstr("2 to 5 dimensions"));
    auto x = torch::rand({2, kChannels}).requires_grad_();
    const auto loss = sync->forward(x).square().sum();
    EXPECT_THAT(
        message_of([&] { torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true); }),
        HasSubstr("create_graph"));
  });
}

struct TypedImpl : nn::Module {
  TypedImpl() { norm = register_module("norm", nn::BatchNorm1d(4)); }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
  nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Typed);

struct TailImpl : nn::Module {
  TailImpl() { layers = register_module("layers", nn::Sequential(nn::BatchNorm1d(4), nn::ReLU())); }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};
TORCH_MODULE(Tail);

struct JoinableImpl : nn::Module {
  JoinableImpl() {
    norm = register_module("norm", SyncBatchNorm(4));
    body = register_module("body", nn::Sequential(nn::Linear(4, 4), nn::BatchNorm1d(4), Tail()));
  }
  at::Tensor forward(const at::Tensor& x) { return body->forward(norm->forward(x)); }
  SyncBatchNorm norm{nullptr};
  nn::Sequential body{nullptr};
};
TORCH_MODULE(Joinable);

std::vector<std::string> names_of(const nn::Module& module) {
  auto names = module.named_parameters().keys();
  for (const auto& name : module.named_buffers().keys()) names.push_back(name);
  return names;
}

TEST(ConvertSyncBatchNorm, ReplacesInSequentialsAndKeepsParametersBuffersAndMode) {
  const auto x = (torch::arange(24) * 0.37).sin().view({6, 4});
  replicate(2, [&](Group group) {
    Joinable alone, model;
    {
      torch::NoGradGuard guard;  // the ranks are threads that share one random generator
      for (auto* net : {&alone, &model}) {
        double phase = 0;
        for (auto& p : (*net)->parameters())
          p.copy_((torch::arange(p.numel()) * 0.7 + ++phase).sin().view(p.sizes()));
        for (auto& b : (*net)->buffers()) b.fill_(0.5);
      }
    }
    model->body[1]->eval();
    alone->body[1]->eval();
    const auto names = names_of(*model);
    const auto before = model->parameters(), buffers = model->buffers();
    EXPECT_EQ(convert_sync_batch_norm(model.ptr(), group), 3);
    EXPECT_EQ(names_of(*model), names);
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(model->parameters()[i].is_same(before[i])) << i;
    for (size_t i = 0; i < buffers.size(); ++i)
      EXPECT_TRUE(model->buffers()[i].is_same(buffers[i])) << i;
    EXPECT_NE(model->body[1]->as<SyncBatchNorm>(), nullptr);
    EXPECT_FALSE(model->body[1]->is_training());
    expect_close(model->forward(x.narrow(0, 3 * group.rank(), 3)),
                 alone->forward(x).narrow(0, 3 * group.rank(), 3), "converted");
    for (size_t i = 0; i < model->buffers().size(); ++i) {
      expect_close(model->buffers()[i].to(at::kFloat), alone->buffers()[i].to(at::kFloat),
                   names_of(*model)[before.size() + i]);
    }
    // What forward() used is what is registered.
    EXPECT_EQ(model->named_buffers()["body.2.layers.0.num_batches_tracked"].item<int64_t>(), 1);
  });
}

TEST(ConvertSyncBatchNorm, RejectsTypedMembersByNameAndChangesNothing) {
  replicate(1, [](const Group& group) {
    nn::Sequential model(nn::BatchNorm1d(4), Typed());
    EXPECT_THAT(message_of([&] { convert_sync_batch_norm(model.ptr(), group); }),
                HasSubstr("'1.norm'"));
    EXPECT_NE(model[0]->as<nn::BatchNorm1d>(), nullptr);
    EXPECT_THAT(message_of([&] { convert_sync_batch_norm(nn::BatchNorm1d(4).ptr(), group); }),
                HasSubstr("root"));
  });
}

nn::Sequential small_net() {
  nn::Sequential net(nn::Linear(5, 8), nn::BatchNorm1d(8), nn::Tanh(), nn::Linear(8, 8),
                     nn::BatchNorm1d(8), nn::Linear(8, 2));
  net->to(at::kDouble);
  torch::NoGradGuard guard;
  double phase = 0;
  for (auto& p : net->parameters())
    p.copy_((torch::arange(p.numel()) * 0.7 + ++phase).sin().view(p.sizes()) * 0.5);
  return net;
}

TEST(SyncBatchNorm, EqualsOneProcessInDataParallelWithUnevenBatches) {
  const auto x = (torch::arange(40, at::kDouble) * 1.1).sin().view({8, 5});
  const auto target = (torch::arange(16, at::kDouble) * 0.6).cos().view({8, 2});
  const auto train = [](nn::Sequential& net, auto& forward, const at::Tensor& in,
                        const at::Tensor& out) {
    torch::optim::SGD optim(net->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      optim.zero_grad();
      torch::mse_loss(forward(in), out).backward();
      optim.step();
    }
  };
  auto alone = small_net();
  const auto forward_alone = [&](const at::Tensor& in) { return alone->forward(in); };
  train(alone, forward_alone, x, target);
  replicate(2, [&](Group group) {
    auto net = small_net();
    EXPECT_EQ(convert_sync_batch_norm(net.ptr(), group), 2);
    auto model = engine::data_parallel(net, group);
    const auto forward = [&](const at::Tensor& in) {
      model.set_samples(static_cast<double>(in.size(0)));
      return net->forward(in);
    };
    const int64_t first = group.rank() == 0 ? 0 : 5, samples = group.rank() == 0 ? 5 : 3;
    train(net, forward, x.narrow(0, first, samples), target.narrow(0, first, samples));
    for (const auto& expected : alone->named_parameters()) {
      expect_close(net->named_parameters()[expected.key()], expected.value(), expected.key());
    }
  });
}

// Two batch norms, and a last layer that only some samples use.
struct BranchImpl : nn::Module {
  BranchImpl() {
    body = register_module("body", small_net());
    extra = register_module("extra", nn::Linear(2, 2));
    extra->to(at::kDouble);
    const torch::NoGradGuard guard;
    extra->weight.copy_(torch::arange(4, at::kDouble).view({2, 2}) * 0.3);
    extra->bias.fill_(0.2);
  }
  at::Tensor forward(const at::Tensor& x, int64_t with_extra) {
    const at::Tensor y = body->forward(x);
    if (with_extra == 0) return y;
    return torch::cat({extra->forward(y.slice(0, 0, with_extra)), y.slice(0, with_extra)});
  }
  nn::Sequential body{nullptr};
  nn::Linear extra{nullptr};
};
TORCH_MODULE(Branch);

// Gradients are messages in small buckets. Rank 0 sends those of the last layer before the batch
// norms go backward, and rank 1 after them.
TEST(SyncBatchNorm, DoesNotMixWithTheGradientsOfALayerThatARankLeavesOut) {
  const auto x = (torch::arange(40, at::kDouble) * 1.1).sin().view({8, 5});
  Branch alone;
  torch::optim::SGD optimizer(alone->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    alone->forward(x, 4).square().mean().backward();
    optimizer.step();
  }
  comm::replicate_over_tcp(2, [&](const Group& group) {
    Branch net;
    convert_sync_batch_norm(net.ptr(), group);
    auto model = engine::data_parallel(net, group, {.bucket_bytes = 1, .first_bucket_bytes = 1});
    torch::optim::SGD optim(net->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 2; ++step) {
      optim.zero_grad();
      const at::Tensor mine = x.narrow(0, 4 * group.rank(), 4);
      model.forward(mine, int64_t{group.rank() == 0 ? 4 : 0}).square().mean().backward();
      optim.step();
    }
    for (const auto& expected : alone->named_parameters())
      expect_close(net->named_parameters()[expected.key()], expected.value(), expected.key());
  });
}

}  // namespace sync_batch_norm_test
}  // namespace weft::parallel
