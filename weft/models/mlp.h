// Mlp: a multilayer perceptron of linear layers with ReLU between them, on a flattened input.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "weft/parallel/compose/model.h"

namespace weft::models {

struct MlpOptions {
  std::int64_t inputs = 28 * 28;
  std::vector<std::int64_t> hidden = {256, 128};
  std::int64_t num_classes = 10;
};

// Parameters fc1.weight, fc1.bias, fc2.… with libtorch's initialization; 235,146 with the defaults.
struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  explicit MlpImpl(MlpOptions options = {});
  void reset() override;
  // [n, …] with `inputs` values per sample -> logits [n, num_classes].
  at::Tensor forward(const at::Tensor& x);

  MlpOptions options;
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mlp);

// The same net as blocks for parallelize(), one layer per block, without a loss.
parallel::BlockModel mlp_blocks(const MlpOptions& options);

}  // namespace weft::models
