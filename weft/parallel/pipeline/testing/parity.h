// Test helpers: a chain of blocks on one process and on the ranks of a pipeline.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/tensors.h"
#include "weft/parallel/pipeline/pipeline.h"

namespace weft::parallel::pipeline_parity {

using comm::wave;
using schedule::pipeline::Algorithm;

constexpr std::int64_t kFeatures = 6, kSamples = 11;

// A residual block whose weights are a function of its number.
struct LinkImpl : torch::nn::Module {
  explicit LinkImpl(int number) {
    layer = register_module("layer", torch::nn::Linear(kFeatures, kFeatures));
    layer->to(at::kDouble);
    const at::NoGradGuard no_grad;
    layer->weight.copy_(wave({kFeatures, kFeatures}, number) * 0.4);
    layer->bias.copy_(wave({kFeatures}, number + 0.5) * 0.1);
  }
  at::Tensor forward(const at::Tensor& x) { return x + torch::tanh(layer(x)); }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Link);

inline at::Tensor mse(const std::vector<at::Tensor>& y, const std::vector<at::Tensor>& t) {
  return torch::mse_loss(y[0], t[0]);
}

inline PipelineOptions options_of(Algorithm algorithm, int micro_batches) {
  return {.algorithm = algorithm, .micro_batches = micro_batches, .loss = mse};
}

// The batch of a step.
inline at::Tensor input_of(int step) { return wave({kSamples, kFeatures}, step * 0.3); }
inline at::Tensor target_of(int step) { return wave({kSamples, kFeatures}, step * 0.3 + 2); }

// Results of training: the loss of each step, and gradients and weights by parameter.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients, weights;
};

// Compares with the results of a pipeline: bit for bit, or to 1e-10 relative and absolute.
inline void expect_same(const Trained& got, const Trained& expected, bool bits,
                        const std::string& what) {
  ASSERT_EQ(got.losses.size(), expected.losses.size()) << what;
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    if (bits) {
      EXPECT_EQ(got.losses[i], expected.losses[i]) << what;
    }
    EXPECT_NEAR(got.losses[i], expected.losses[i], 1e-10) << what;
  }
  ASSERT_EQ(got.weights.size(), expected.weights.size()) << what;
  const auto compare = [&](const auto& mine, const auto& theirs) {
    for (const auto& [name, tensor] : mine) {
      const at::Tensor& other = theirs.at(name);
      EXPECT_TRUE(bits ? torch::equal(tensor, other) : torch::allclose(tensor, other, 1e-10, 1e-10))
          << what << ": " << name;
    }
  };
  compare(got.gradients, expected.gradients);
  compare(got.weights, expected.weights);
}

}  // namespace weft::parallel::pipeline_parity
