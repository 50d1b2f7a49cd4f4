// ResNet-18, -34, -50, -101 and -152 (He, Zhang, Ren, Sun: Deep Residual Learning for Image
// Recognition, CVPR 2016), with torchvision's architecture, parameter names and initialization.
//
// Weights can be exchanged with torchvision. The stride of a bottleneck is that of its 3x3
// convolution. Batch norms are torch's until parallel::convert_sync_batch_norm() lets them join a
// group.
//
//   stem ─ layer1 (64) ─ layer2 (128, half the image) ─ layer3 (256, half) ─ layer4 (512, half)
//        ─ mean over the image ─ fc
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <cstdint>
#include <vector>

#include "weft/parallel/batch_norm/sync_batch_norm.h"
#include "weft/parallel/compose/model.h"

namespace weft::models {

enum class Stem {
  // 7x7 convolution with stride 2 and 3x3 max-pooling with stride 2, as in torchvision: for images
  // of 224x224; fast on small ones.
  k7x7,
  // 3x3 convolution, no pooling: for small images (28x28, 32x32), with 16 times the work of k7x7.
  k3x3,
};

struct ResNetOptions {
  std::int64_t depth = 18;  // 18 and 34: basic blocks; 50, 101 and 152: bottlenecks.
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 1000;
  Stem stem = Stem::k7x7;
};

struct ResNetBlockOptions {
  std::int64_t in = 64;
  std::int64_t width = 64;
  std::int64_t stride = 1;
  bool bottleneck = false;

  std::int64_t out() const { return bottleneck ? 4 * width : width; }
};

// Returns relu(shortcut(x) + y). y is two 3x3 convolutions, or 1x1, 3x3 and 1x1 (bottleneck), each
// with its batch norm, and relu between them. The shortcut is x, or a 1x1 convolution and a batch
// norm where the shape changes.
struct ResNetBlockImpl : torch::nn::Cloneable<ResNetBlockImpl> {
  explicit ResNetBlockImpl(ResNetBlockOptions given);
  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  ResNetBlockOptions options;
  // conv3 and bn3 are for bottlenecks only.
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  parallel::SyncBatchNorm bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(ResNetBlock);

// Initialization. Convolutions: Kaiming normal over fan-out. Batch norms: 1 and 0. Last layer:
// libtorch's own.
// 11,175,370 parameters for 18 layers, one channel, ten classes and the 7x7 stem. With the options
// of ImageNet 11,689,512, 21,797,672, 25,557,032, 44,549,160 and 60,192,808 for the five depths, as
// torchvision's.
struct ResNetImpl : torch::nn::Cloneable<ResNetImpl> {
  // Throws Error(kInvalidArgument) for a depth that does not exist.
  explicit ResNetImpl(ResNetOptions given = {});
  void reset() override;
  // [n, in_channels, height, width] -> logits [n, num_classes]. Any height and width.
  at::Tensor forward(const at::Tensor& x);
  // Stem, blocks in order, head, as blocks that use this net's own modules.
  std::vector<engine::Block> parts() const;

  ResNetOptions options;
  torch::nn::Conv2d conv1{nullptr};
  parallel::SyncBatchNorm bn1{nullptr};
  // Children "layer1" to "layer4".
  std::array<torch::nn::Sequential, 4> layers = {nullptr, nullptr, nullptr, nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet);

// The same net as blocks for parallelize(), without a loss. Throws as ResNetImpl.
parallel::BlockModel resnet_blocks(const ResNetOptions& options);

}  // namespace weft::models
