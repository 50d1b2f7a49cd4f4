#include "weft/models/vision/resnet.h"

#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <iterator>

#include "weft/base/error.h"
#include "weft/models/vision/internal/holder.h"

namespace weft::models {
namespace {

namespace nn = torch::nn;

struct Depth {
  std::int64_t depth;
  std::array<int, 4> blocks;  // Number of blocks in layer1 to layer4.
  bool bottleneck;
};

constexpr Depth kDepths[] = {{18, {2, 2, 2, 2}, false},
                             {34, {3, 4, 6, 3}, false},
                             {50, {3, 4, 6, 3}, true},
                             {101, {3, 4, 23, 3}, true},
                             {152, {3, 8, 36, 3}, true}};

const Depth& depth_of(const ResNetOptions& options) {
  const auto* const found = std::find_if(std::begin(kDepths), std::end(kDepths),
                                         [&](const Depth& d) { return d.depth == options.depth; });
  WEFT_REQUIRE(found != std::end(kDepths), "ResNet: depth must be 18, 34, 50, 101 or 152, not " +
                                               std::to_string(options.depth));
  return *found;
}

struct Kernel {
  std::int64_t size, stride, padding;
};

nn::Conv2d conv(std::int64_t in, std::int64_t out, Kernel kernel) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel.size)
                        .stride(kernel.stride)
                        .padding(kernel.padding)
                        .bias(false));
}

void initialize(const nn::Module& net) {
  for (const auto& module : net.modules()) {
    if (auto* convolution = module->as<nn::Conv2d>())
      nn::init::kaiming_normal_(convolution->weight, 0, torch::kFanOut, torch::kReLU);
  }
}

nn::Conv2d stem_conv(const ResNetOptions& options) {
  return conv(options.in_channels, 64,
              options.stem == Stem::k7x7 ? Kernel{7, 2, 3} : Kernel{3, 1, 1});
}

// Returns block `i` of layer `layer`, both counted from 0.
ResNetBlock block_of(const Depth& depth, int layer, int i) {
  ResNetBlockOptions block{
      .in = 64, .width = std::int64_t{64} << layer, .stride = 1, .bottleneck = depth.bottleneck};
  if (i > 0) {
    block.in = block.out();
  } else if (layer > 0) {
    block.in = block.out() / 2;
    block.stride = 2;
  }
  return ResNetBlock(block);
}

nn::Linear last(const Depth& depth, const ResNetOptions& options) {
  return nn::Linear(ResNetBlockOptions{.width = 512, .bottleneck = depth.bottleneck}.out(),
                    options.num_classes);
}

at::Tensor stem_of(const at::Tensor& x, Stem stem, nn::Conv2d conv1, parallel::SyncBatchNorm bn1) {
  const at::Tensor y = bn1->forward(conv1->forward(x)).relu_();
  return stem == Stem::k7x7 ? torch::max_pool2d(y, 3, 2, 1) : y;
}

at::Tensor head_of(const at::Tensor& x, nn::Linear fc) {
  return fc->forward(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

engine::Block stem_block(Stem stem, const nn::Conv2d& conv1, const parallel::SyncBatchNorm& bn1) {
  return internal::block_of("stem", {{"conv1", conv1.ptr()}, {"bn1", bn1.ptr()}},
                            [=](const at::Tensor& x) { return stem_of(x, stem, conv1, bn1); });
}

engine::Block head_block(const nn::Linear& fc) {
  return internal::block_of("head", {{"fc", fc.ptr()}},
                            [=](const at::Tensor& x) { return head_of(x, fc); });
}

engine::Block with_initial_values(engine::Block block) {
  initialize(*block.module);
  return block;
}

std::string name_of(int layer, int i) {
  return "layer" + std::to_string(layer + 1) + "." + std::to_string(i);
}

}  // namespace

ResNetBlockImpl::ResNetBlockImpl(ResNetBlockOptions given) : options(given) { reset(); }

void ResNetBlockImpl::reset() {
  const auto [in, width, stride, bottleneck] = options;
  const std::int64_t out = options.out();
  conv1 = register_module("conv1",
                          conv(in, width, bottleneck ? Kernel{1, 1, 0} : Kernel{3, stride, 1}));
  bn1 = register_module("bn1", parallel::SyncBatchNorm(width));
  conv2 = register_module("conv2", conv(width, width, {3, bottleneck ? stride : 1, 1}));
  bn2 = register_module("bn2", parallel::SyncBatchNorm(width));
  if (bottleneck) {
    conv3 = register_module("conv3", conv(width, out, {1, 1, 0}));
    bn3 = register_module("bn3", parallel::SyncBatchNorm(out));
  }
  if (stride != 1 || in != out) {
    downsample = register_module(
        "downsample", nn::Sequential(conv(in, out, {1, stride, 0}), parallel::SyncBatchNorm(out)));
  }
}

at::Tensor ResNetBlockImpl::forward(const at::Tensor& x) {
  at::Tensor y = bn1->forward(conv1->forward(x)).relu_();
  y = bn2->forward(conv2->forward(y));
  if (conv3) y = bn3->forward(conv3->forward(y.relu_()));
  y += downsample ? downsample->forward(x) : x;
  return y.relu_();
}

ResNetImpl::ResNetImpl(ResNetOptions given) : options(given) { reset(); }

void ResNetImpl::reset() {
  const Depth& depth = depth_of(options);
  conv1 = register_module("conv1", stem_conv(options));
  bn1 = register_module("bn1", parallel::SyncBatchNorm(64));
  for (int layer = 0; layer < 4; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    nn::Sequential blocks;
    for (int i = 0; i < depth.blocks[at]; ++i) blocks->push_back(block_of(depth, layer, i));
    layers[at] = register_module("layer" + std::to_string(layer + 1), blocks);
  }
  fc = register_module("fc", last(depth, options));
  for (const auto& child : children()) initialize(*child);
}

at::Tensor ResNetImpl::forward(const at::Tensor& x) {
  at::Tensor y = stem_of(x, options.stem, conv1, bn1);
  for (auto& layer : layers) y = layer->forward(y);
  return head_of(y, fc);
}

std::vector<engine::Block> ResNetImpl::parts() const {
  std::vector<engine::Block> parts = {stem_block(options.stem, conv1, bn1)};
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (std::size_t i = 0; i < layers[layer]->size(); ++i) {
      parts.push_back(engine::block(name_of(static_cast<int>(layer), static_cast<int>(i)),
                                    layers[layer]->ptr<ResNetBlockImpl>(i)));
    }
  }
  parts.push_back(head_block(fc));
  return parts;
}

parallel::BlockModel resnet_blocks(const ResNetOptions& options) {
  using parallel::Contexts;
  const Depth& depth = depth_of(options);
  parallel::BlockModel model;
  model.blocks.push_back({"stem", [options](const Contexts&) {
                            return with_initial_values(stem_block(options.stem, stem_conv(options),
                                                                  parallel::SyncBatchNorm(64)));
                          }});
  for (int layer = 0; layer < 4; ++layer) {
    for (int i = 0; i < depth.blocks[static_cast<std::size_t>(layer)]; ++i) {
      model.blocks.push_back({name_of(layer, i), [&depth, layer, i](const Contexts&) {
                                return with_initial_values(
                                    engine::block(block_of(depth, layer, i)));
                              }});
    }
  }
  model.blocks.push_back(
      {"head", [options, &depth](const Contexts&) { return head_block(last(depth, options)); }});
  return model;
}

}  // namespace weft::models
