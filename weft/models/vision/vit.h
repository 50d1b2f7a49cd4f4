// Vision Transformer (Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020), with the parameter names of Hugging Face's transformers
// (ViTForImageClassification), whose checkpoints have queries, keys and values apart. Written with the layers of parallel/tensor: heads and
// MLP are split over a group's ranks, or plain in a group of one.
//
//   patches ─ projection ─ class token, + positions ─ block 0 ─ … ─ block n-1 ─ layernorm ─ class token (or mean) ─ classifier
//   block:  x + attention(layernorm_before(x)), then x + mlp(layernorm_after(x))
//
// A step hands over, over several ranks, two all-reduces of [n, tokens, width] a block forward and two backward.
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
  kToken,  // a class token, learned, before the patches: what it has become is classified
  kMean,   // no such token: the mean over the patches is (Beyer, Zhai, Kolesnikov, "Better plain ViT baselines for ImageNet-1k", 2022)
};

// ViT-B/16 for ImageNet unless set.
struct VitOptions {
  std::int64_t image_size = 224;  // height and width, a multiple of patch
  std::int64_t patch = 16;
  std::int64_t in_channels = 3;
  std::int64_t num_classes = 1000;
  std::int64_t layers = 12, width = 768, heads = 12;
  std::int64_t hidden = 0;  // of the MLP; 0: 4 · width
  VitPool pool = VitPool::kToken;
  double dropout = 0;         // after the positions, and on what each half of a block adds
  double norm_eps = 1e-12;    // transformers' (1e-6 in the paper's code and torchvision)
  double initial_std = 0.02;  // N(0, std²) for linear layers, positions and class token; 0: libtorch's own, and ones

  std::int64_t tokens() const { return (image_size / patch) * (image_size / patch) + (pool == VitPool::kToken ? 1 : 0); }
};

// Children "vit" (embeddings, encoder.layer.0 …, layernorm) and "classifier". ViT-B/16 has 86,567,656 parameters, ViT-L/16 (24 layers of
// width 1024, 16 heads) 304,326,632, as torchvision's.
struct VitImpl : torch::nn::Cloneable<VitImpl> {
  // Throws Error(kInvalidArgument) for sizes that make no net, and for heads or units that do not divide by the ranks.
  explicit VitImpl(VitOptions given = {}, parallel::TensorParallel tp_ = {});
  void reset() override;
  // [n, in_channels, image_size, image_size], the same on all ranks -> logits [n, num_classes], the same too. Collective, backward too.
  at::Tensor forward(const at::Tensor& x);
  // Embeddings, blocks in order, head: of this net's own modules.
  std::vector<parallel::Block> parts() const;

  VitOptions options;
  parallel::TensorParallel tp;
  std::shared_ptr<torch::nn::Module> vit;
  parallel::Linear classifier{nullptr};
};
TORCH_MODULE(Vit);

// The same net as blocks, for parallelize(): without a loss. Heads and units of MLPs are split over tp. Throws as VitImpl.
parallel::BlockModel vit_blocks(const VitOptions& options);

}  // namespace weft::models
