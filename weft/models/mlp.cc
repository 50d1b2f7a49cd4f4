#include "weft/models/mlp.h"

#include <torch/torch.h>

namespace weft::models {

MlpImpl::MlpImpl(MlpOptions given) : options(std::move(given)) { reset(); }

void MlpImpl::reset() {
  layers.clear();
  std::vector<std::int64_t> widths = options.hidden;
  widths.push_back(options.num_classes);
  std::int64_t in = options.inputs;
  for (const std::int64_t out : widths) {
    layers.push_back(register_module("fc" + std::to_string(layers.size() + 1), torch::nn::Linear(in, out)));
    in = out;
  }
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  at::Tensor y = x.flatten(1);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    y = layers[i]->forward(y);
    if (i + 1 < layers.size()) y = torch::relu(y);
  }
  return y;
}

}  // namespace weft::models
