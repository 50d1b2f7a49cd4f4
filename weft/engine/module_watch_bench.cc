// Cost of looking for changes of the module in a training step, beside a step of the same network:
// the Fashion-MNIST CNN (batch 64) and the convolutions of a ResNet-18 (batch 32, 32 x 32 pixels).
//
//   build/release/weft/engine/weft_engine_bench
#include <benchmark/benchmark.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/engine/internal/module_watch.h"

namespace weft::engine::internal {
namespace {

namespace nn = torch::nn;

struct Network {
  nn::Sequential net;
  at::Tensor x;
};

Network cnn() {
  nn::Sequential net(nn::Conv2d(1, 32, 3), nn::ReLU(), nn::Conv2d(32, 64, 3), nn::ReLU(),
                     nn::MaxPool2d(2), nn::Flatten(), nn::Linear(9216, 128), nn::ReLU(),
                     nn::Linear(128, 10));
  return {net, torch::randn({64, 1, 28, 28})};
}

Network resnet() {
  nn::Sequential net;
  std::int64_t from = 3;
  for (const std::int64_t to : {64, 128, 256, 512}) {
    for (int i = 0; i < 5; ++i, from = to) {
      net->push_back(nn::Conv2d(
          nn::Conv2dOptions(from, to, 3).padding(1).stride(from != to && to > 64 ? 2 : 1)));
      net->push_back(nn::BatchNorm2d(to));
      net->push_back(nn::ReLU());
    }
  }
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(512, 10));
  return {net, torch::randn({32, 3, 32, 32})};
}

void step(benchmark::State& state, const Network& network) {
  torch::set_num_threads(1);
  nn::Sequential net = network.net;
  for (auto _ : state) {
    net->zero_grad();
    net->forward(network.x).square().mean().backward();
  }
}

// All that a step does with shared weights, where it looks the most.
void look(benchmark::State& state, const Network& network) {
  nn::Sequential net = network.net;
  net->forward(network.x).square().mean().backward();
  const std::vector<Block> blocks{{.module = net.ptr()}};
  const ParamList params(blocks);
  ModuleWatch watch(blocks, params);
  watch.forbid_writing("why", true);
  for (auto _ : state) {
    watch.check(true);  // forward
    watch.check(true);  // the first gradient
    for (int param = 0; param < static_cast<int>(params.size()); ++param)
      watch.gradients().note(param);
    benchmark::DoNotOptimize(watch.digest());
    watch.check(false);  // step
    watch.gradients().check();
    benchmark::DoNotOptimize(watch.moved(params.size()).size());
    watch.gradients().forget();
    watch.rebase();
  }
}

void StepOfCnn(benchmark::State& state) { step(state, cnn()); }
void LookAtCnn(benchmark::State& state) { look(state, cnn()); }
void StepOfResNet(benchmark::State& state) { step(state, resnet()); }
void LookAtResNet(benchmark::State& state) { look(state, resnet()); }

BENCHMARK(StepOfCnn)->Unit(benchmark::kMicrosecond);
BENCHMARK(LookAtCnn)->Unit(benchmark::kMicrosecond);
BENCHMARK(StepOfResNet)->Unit(benchmark::kMicrosecond);
BENCHMARK(LookAtResNet)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace weft::engine::internal
