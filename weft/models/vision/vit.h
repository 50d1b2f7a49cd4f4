// Vit: Vision Transformer (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020), with the
// parameter names of Hugging Face's transformers (ViTForImageClassification).
//
// Queries, keys and values are separate parameters, as in those checkpoints. The layers are those
// of parallel/tensor: heads and MLP are split over a group's ranks, or plain in a group of one.
//
//   patches ─ projection ─ class token, + positions ─ block 0 ─ … ─ block n-1 ─ layernorm
//           ─ class token (or mean) ─ classifier
//   block:  x + attention(layernorm_before(x)), then x + mlp(layernorm_after(x))
//
// Traffic of a step over several ranks: for each block, two all-reduces of [n, tokens, width] in
// forward and two in backward.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/parallel/compose/model.h"
#include "weft/parallel/tensor/linear.h"

namespace weft::models {

enum class VitPool {
  // Classify the output of a learned class token before the patches.
  kToken,
  // Classify the mean over the patches, without a class token (Beyer, Zhai, Kolesnikov, "Better
  // plain ViT baselines for ImageNet-1k", 2022).
  kMean,
};

// Options of a Vision Transformer. The defaults are ViT-B/16 for ImageNet.
struct VitOptions {
  // Height of an image, and its width unless image_width is set; multiples of patch.
  std::int64_t image_size = 224, image_width = 0;
  std::int64_t patch = 16;
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 1000;
  std::int64_t layers = 12, width = 768, heads = 12;
  std::int64_t hidden = 0;  // Units of the MLP. 0: 4 · width.
  VitPool pool = VitPool::kToken;
  double dropout = 0;       // Dropout after the positions and on each half of a block.
  double norm_eps = 1e-12;  // Epsilon of transformers (1e-6 in the paper's code, torchvision).
  // Initial values N(0, std²) of linear layers, positions and class token. 0: libtorch's own, and
  // ones.
  double initial_std = 0.02;

  std::int64_t tokens() const {
    const std::int64_t columns = (image_width > 0 ? image_width : image_size) / patch;
    return (image_size / patch) * columns + (pool == VitPool::kToken ? 1 : 0);
  }
};

// Children: "vit" (embeddings, encoder.layer.0 …, layernorm) and "classifier". ViT-B/16 has
// 86,567,656 parameters, ViT-L/16 (24 layers of width 1024, 16 heads) has 304,326,632, as
// torchvision's.
struct VitImpl : torch::nn::Cloneable<VitImpl> {
  // Throws Error(kInvalidArgument) for invalid sizes, and for heads or units that do not divide by
  // the ranks.
  explicit VitImpl(VitOptions given = {}, parallel::TensorParallel tp_ = {});
  void reset() override;
  // [n, in_channels, height, width], the same on all ranks -> logits [n, num_classes], the
  // same on all ranks. Collective, also in backward.
  at::Tensor forward(const at::Tensor& x);
  // Embeddings, blocks in order, head, as blocks that use this net's own modules.
  std::vector<engine::Block> parts() const;

  VitOptions options;
  parallel::TensorParallel tp;
  std::shared_ptr<torch::nn::Module> vit;
  parallel::Linear classifier{nullptr};
};
TORCH_MODULE(Vit);

// The same net as blocks for parallelize(), without a loss. Heads and units of MLPs are split over
// tp. Throws as VitImpl.
parallel::BlockModel vit_blocks(const VitOptions& options);

}  // namespace weft::models
