// Mixer: MLP-Mixer (Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision", 2021), with
// timm's parameter names and epsilon.
//
// It has many equal, small blocks, which makes it the simplest net for a pipeline. The layers are
// those of parallel/tensor: the units of every MLP are split over a group's ranks, or plain in a
// group of one.
//
//   patches ─ projection ─ block 0 ─ … ─ block n-1 ─ norm ─ mean over the patches ─ head
//   block:  x + mlp_tokens(norm1(x)^T)^T, then x + mlp_channels(norm2(x));   mlp: fc2(gelu(fc1(x)))
//
// Traffic of a step over several ranks: for each block, two all-reduces of [n, patches, width] in
// forward and two in backward.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "weft/parallel/compose/model.h"
#include "weft/parallel/tensor/conv.h"
#include "weft/parallel/tensor/linear.h"
#include "weft/parallel/tensor/norm.h"

namespace weft::models {

// Options of an MLP-Mixer. The defaults are Mixer-B/16 for ImageNet.
struct MixerOptions {
  // Height of an image, and its width unless image_width is set; multiples of patch.
  std::int64_t image_size = 224, image_width = 0;
  std::int64_t patch = 16;
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 1000;
  std::int64_t layers = 12, width = 768;
  // Units of the MLPs over patches. 0: width / 2, as in all of the paper's nets.
  std::int64_t token_hidden = 0;
  // Units of the MLPs over channels. 0: 4 · width.
  std::int64_t channel_hidden = 0;

  std::int64_t patches() const {
    return (image_size / patch) * ((image_width > 0 ? image_width : image_size) / patch);
  }
};

// Linear layers fc1 (column) and fc2 (row).
struct MixerMlpImpl : torch::nn::Cloneable<MixerMlpImpl> {
  MixerMlpImpl(std::int64_t features_, std::int64_t hidden_, parallel::TensorParallel tp_);
  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  std::int64_t features, hidden;
  parallel::TensorParallel tp;
  parallel::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(MixerMlp);

struct MixerBlockImpl : torch::nn::Cloneable<MixerBlockImpl> {
  MixerBlockImpl(MixerOptions given, parallel::TensorParallel tp_);
  void reset() override;
  // [n, patches, width] -> the same.
  at::Tensor forward(const at::Tensor& x);

  MixerOptions options;
  parallel::TensorParallel tp;
  parallel::LayerNorm norm1{nullptr}, norm2{nullptr};
  MixerMlp mlp_tokens{nullptr}, mlp_channels{nullptr};
};
TORCH_MODULE(MixerBlock);

// Projection of patches. Child: "proj".
struct MixerStemImpl : torch::nn::Cloneable<MixerStemImpl> {
  MixerStemImpl(MixerOptions given, parallel::TensorParallel tp_);
  void reset() override;
  // [n, in_channels, height, width] -> [n, patches, width].
  at::Tensor forward(const at::Tensor& x);

  MixerOptions options;
  parallel::TensorParallel tp;
  parallel::Conv2d proj{nullptr};
};
TORCH_MODULE(MixerStem);

// Initialization is libtorch's own. Mixer-S/16 (8 layers of width 512) has 18,528,264 parameters,
// Mixer-B/16 has 59,880,472.
struct MixerImpl : torch::nn::Cloneable<MixerImpl> {
  // Throws Error(kInvalidArgument) for invalid sizes, and for units that do not divide by the
  // ranks.
  explicit MixerImpl(MixerOptions given = {}, parallel::TensorParallel tp_ = {});
  void reset() override;
  // [n, in_channels, height, width], the same on all ranks -> logits [n, num_classes], the
  // same on all ranks. Collective, also in backward.
  at::Tensor forward(const at::Tensor& x);
  // Stem, blocks in order, head, as blocks that use this net's own modules.
  std::vector<engine::Block> parts() const;

  MixerOptions options;
  parallel::TensorParallel tp;
  MixerStem stem{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  parallel::LayerNorm norm{nullptr};
  parallel::Linear head{nullptr};
};
TORCH_MODULE(Mixer);

// The same net as blocks for parallelize(), without a loss. Units of MLPs are split over tp. Throws
// as MixerImpl.
parallel::BlockModel mixer_blocks(const MixerOptions& options);

}  // namespace weft::models
