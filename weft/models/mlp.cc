#include "weft/models/mlp.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace weft::models {

MlpImpl::MlpImpl(MlpOptions given) : options(std::move(given)) { reset(); }

void MlpImpl::reset() {
  layers.clear();
  std::vector<std::int64_t> widths = options.hidden;
  widths.push_back(options.num_classes);
  std::int64_t in = options.inputs;
  for (const std::int64_t out : widths) {
    layers.push_back(
        register_module("fc" + std::to_string(layers.size() + 1), torch::nn::Linear(in, out)));
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

parallel::BlockModel mlp_blocks(const MlpOptions& options) {
  parallel::BlockModel model;
  std::vector<std::int64_t> widths = options.hidden;
  widths.push_back(options.num_classes);
  std::int64_t in = options.inputs;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const bool last = i + 1 == widths.size();
    model.blocks.push_back(
        {"fc" + std::to_string(i + 1), [in, out = widths[i], last](const parallel::Contexts&) {
           const torch::nn::Linear layer(in, out);
           const auto forward = [layer, last](engine::Tensors x) {
             const at::Tensor y = layer.ptr()->forward(x.at(0).flatten(1));
             x[0] = last ? y : torch::relu(y);
             return x;
           };
           return engine::Block{.module = layer.ptr(), .forward = forward};
         }});
    in = widths[i];
  }
  return model;
}

}  // namespace weft::models
