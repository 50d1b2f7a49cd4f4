// ResNet-18 (He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016), with torchvision's parameter names and
// initialisation, so that weights can be exchanged with it. Its batch norms are torch's until parallel::convert_sync_batch_norm() lets them
// join a group.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "weft/parallel/data/sync_batch_norm.h"

namespace weft::models {

enum class Stem {
  k7x7,  // 7x7 convolution by 2 and 3x3 max-pooling by 2, as torchvision's: for images of 224x224; fast on small ones
  k3x3,  // 3x3 convolution, no pooling: for small images (28x28, 32x32), 16 times the work of the other
};

struct ResNetOptions {
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 1000;
  Stem stem = Stem::k7x7;
};

// relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)); the shortcut is a 1x1 convolution where the shape changes.
struct BasicBlockImpl : torch::nn::Cloneable<BasicBlockImpl> {
  BasicBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride);
  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  std::int64_t in, out, stride;
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  parallel::SyncBatchNorm bn1{nullptr}, bn2{nullptr};
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

// Convolutions: Kaiming normal over fan-out; batch norms 1 and 0; the last layer libtorch's own. 11,175,370 parameters for one channel,
// ten classes and the 7x7 stem; 11,689,512 as torchvision's for ImageNet.
struct ResNet18Impl : torch::nn::Cloneable<ResNet18Impl> {
  explicit ResNet18Impl(ResNetOptions options = {});
  void reset() override;
  // [n, in_channels, height, width] -> logits [n, num_classes]. Any height and width.
  at::Tensor forward(const at::Tensor& x);

  ResNetOptions options;
  torch::nn::Conv2d conv1{nullptr};
  parallel::SyncBatchNorm bn1{nullptr};
  torch::nn::Sequential layer1{nullptr}, layer2{nullptr}, layer3{nullptr}, layer4{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet18);

}  // namespace weft::models
