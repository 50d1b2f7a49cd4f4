#include "weft/models/resnet.h"

#include <torch/torch.h>

namespace weft::models {
namespace {

namespace nn = torch::nn;

struct Kernel {
  std::int64_t size, stride, padding;
};

nn::Conv2d conv(std::int64_t in, std::int64_t out, Kernel kernel) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel.size).stride(kernel.stride).padding(kernel.padding).bias(false));
}

// Two blocks; the first halves the image where stride is 2.
nn::Sequential stage(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return nn::Sequential(BasicBlock(in, out, stride), BasicBlock(out, out, 1));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(std::int64_t in_, std::int64_t out_, std::int64_t stride_) : in(in_), out(out_), stride(stride_) { reset(); }

void BasicBlockImpl::reset() {
  conv1 = register_module("conv1", conv(in, out, {3, stride, 1}));
  bn1 = register_module("bn1", parallel::SyncBatchNorm(out));
  conv2 = register_module("conv2", conv(out, out, {3, 1, 1}));
  bn2 = register_module("bn2", parallel::SyncBatchNorm(out));
  if (stride != 1 || in != out) {
    downsample = register_module("downsample", nn::Sequential(conv(in, out, {1, stride, 0}), parallel::SyncBatchNorm(out)));
  }
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& x) {
  at::Tensor y = bn1->forward(conv1->forward(x)).relu_();
  y = bn2->forward(conv2->forward(y));
  y += downsample ? downsample->forward(x) : x;
  return y.relu_();
}

ResNet18Impl::ResNet18Impl(ResNetOptions given) : options(given) { reset(); }

void ResNet18Impl::reset() {
  const Kernel kernel = options.stem == Stem::k7x7 ? Kernel{7, 2, 3} : Kernel{3, 1, 1};
  conv1 = register_module("conv1", conv(options.in_channels, 64, kernel));
  bn1 = register_module("bn1", parallel::SyncBatchNorm(64));
  layer1 = register_module("layer1", stage(64, 64, 1));
  layer2 = register_module("layer2", stage(64, 128, 2));
  layer3 = register_module("layer3", stage(128, 256, 2));
  layer4 = register_module("layer4", stage(256, 512, 2));
  fc = register_module("fc", nn::Linear(512, options.num_classes));
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* convolution = module->as<nn::Conv2d>()) nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
  }
}

at::Tensor ResNet18Impl::forward(const at::Tensor& x) {
  at::Tensor y = bn1->forward(conv1->forward(x)).relu_();
  if (options.stem == Stem::k7x7) y = torch::max_pool2d(y, 3, 2, 1);
  y = layer4->forward(layer3->forward(layer2->forward(layer1->forward(y))));
  return fc->forward(torch::adaptive_avg_pool2d(y, {1, 1}).flatten(1));
}

}  // namespace weft::models
