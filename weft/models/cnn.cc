#include "weft/models/cnn.h"

#include <torch/torch.h>

namespace weft::models {

CnnImpl::CnnImpl(CnnOptions given) : options(given) { reset(); }

void CnnImpl::reset() {
  const auto conv3x3 = [](std::int64_t in, std::int64_t out) { return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)); };
  const std::int64_t side = options.image_size / 4;
  conv1 = register_module("conv1", conv3x3(options.in_channels, 32));
  conv2 = register_module("conv2", conv3x3(32, 64));
  fc1 = register_module("fc1", torch::nn::Linear(64 * side * side, 128));
  fc2 = register_module("fc2", torch::nn::Linear(128, options.num_classes));
}

at::Tensor CnnImpl::forward(const at::Tensor& x) {
  at::Tensor y = torch::max_pool2d(torch::relu(conv1->forward(x)), 2);
  y = torch::max_pool2d(torch::relu(conv2->forward(y)), 2);
  return fc2->forward(torch::relu(fc1->forward(y.flatten(1))));
}

}  // namespace weft::models
