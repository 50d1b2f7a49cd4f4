#include "weft/models/cnn.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace weft::models {

CnnImpl::CnnImpl(CnnOptions given) : options(given) { reset(); }

namespace {

torch::nn::Conv2d conv3x3(std::int64_t in, std::int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
}

template <class Layer, class Forward>
engine::Block layer_block(const Layer& layer, const Forward& forward) {
  const auto of_first = [layer, forward](engine::Tensors x) {
    x.at(0) = forward(*layer.ptr(), x.at(0));
    return x;
  };
  return {.module = layer.ptr(), .forward = of_first};
}

at::Tensor convolved(torch::nn::Conv2dImpl& conv, const at::Tensor& x) {
  return torch::max_pool2d(torch::relu(conv.forward(x)), 2);
}

}  // namespace

void CnnImpl::reset() {
  conv1 = register_module("conv1", conv3x3(options.in_channels, 32));
  conv2 = register_module("conv2", conv3x3(32, 64));
  fc1 = register_module("fc1", torch::nn::Linear(options.features(), 128));
  fc2 = register_module("fc2", torch::nn::Linear(128, options.num_classes));
}

at::Tensor CnnImpl::forward(const at::Tensor& x) {
  at::Tensor y = torch::max_pool2d(torch::relu(conv1->forward(x)), 2);
  y = torch::max_pool2d(torch::relu(conv2->forward(y)), 2);
  return fc2->forward(torch::relu(fc1->forward(y.flatten(1))));
}

parallel::BlockModel cnn_blocks(const CnnOptions& options) {
  using parallel::Contexts;
  using torch::nn::Linear;
  using torch::nn::LinearImpl;
  parallel::BlockModel model;
  model.blocks.push_back({"conv1", [options](const Contexts&) {
                            return layer_block(conv3x3(options.in_channels, 32), convolved);
                          }});
  model.blocks.push_back(
      {"conv2", [](const Contexts&) { return layer_block(conv3x3(32, 64), convolved); }});
  model.blocks.push_back({"fc1", [options](const Contexts&) {
                            const auto forward = [](LinearImpl& fc, const at::Tensor& x) {
                              return torch::relu(fc.forward(x.flatten(1)));
                            };
                            return layer_block(Linear(options.features(), 128), forward);
                          }});
  model.blocks.push_back({"fc2", [options](const Contexts&) {
                            return engine::block(Linear(128, options.num_classes));
                          }});
  return model;
}

}  // namespace weft::models
