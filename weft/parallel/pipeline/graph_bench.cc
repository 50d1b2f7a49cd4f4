// Cost of splitting a stage's backward: forward and backward of four layers with GELU, in one part
// and in two.
#include <benchmark/benchmark.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/parallel/pipeline/internal/graph.h"

namespace weft::parallel::internal {
namespace {

void backward(benchmark::State& state, bool split) {
  torch::set_num_threads(1);
  const std::int64_t features = state.range(0), samples = 64;
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i) {
    net->push_back(torch::nn::Linear(features, features));
    net->push_back(torch::nn::GELU());
  }
  const Tensors x{torch::randn({samples, features}).requires_grad_()},
      g{torch::randn({samples, features})};
  for (auto _ : state) {
    StageGraph graph([&](const Tensors& in) { return Tensors{net->forward(in[0])}; }, x);
    graph.drop_values();
    if (split) {
      benchmark::DoNotOptimize(graph.backward_input(g));
      graph.backward_weight();
    } else {
      benchmark::DoNotOptimize(graph.backward(g));
    }
  }
}

void Whole(benchmark::State& state) { backward(state, false); }
void InTwoParts(benchmark::State& state) { backward(state, true); }

BENCHMARK(Whole)->Arg(64)->Arg(512);
BENCHMARK(InTwoParts)->Arg(64)->Arg(512);

}  // namespace
}  // namespace weft::parallel::internal
