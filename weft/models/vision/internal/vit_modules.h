// The modules of a Vision Transformer, nested as in Hugging Face's transformers. `options` are
// complete: VitImpl has checked them.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/modulelist.h>

#include "weft/models/vision/vit.h"
#include "weft/parallel/tensor/conv.h"
#include "weft/parallel/tensor/dropout.h"
#include "weft/parallel/tensor/norm.h"

namespace weft::models::internal {

// Base of the modules below, which keep the options and their group.
template <class Derived>
struct VitModule : torch::nn::Cloneable<Derived> {
  VitModule(VitOptions given, parallel::TensorParallel tp_) : options(given), tp(std::move(tp_)) {}

  VitOptions options;
  parallel::TensorParallel tp;
};

// Child "projection".
struct VitPatchesImpl : VitModule<VitPatchesImpl> {
  VitPatchesImpl(VitOptions given, parallel::TensorParallel tp_);
  void reset() override;

  parallel::Conv2d projection{nullptr};
};
TORCH_MODULE(VitPatches);

// [n, in_channels, image_size, image_size] -> [n, tokens, width].
struct VitEmbeddingsImpl : VitModule<VitEmbeddingsImpl> {
  VitEmbeddingsImpl(VitOptions given, parallel::TensorParallel tp_);
  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  // cls_token: [1, 1, width], undefined with VitPool::kMean. position_embeddings: [1, tokens,
  // width].
  at::Tensor cls_token, position_embeddings;
  VitPatches patch_embeddings{nullptr};
  parallel::Dropout dropout{nullptr};
};
TORCH_MODULE(VitEmbeddings);

// softmax(q k^T / sqrt(d)) v of this rank's heads. Every token attends to all tokens.
struct VitSelfAttentionImpl : VitModule<VitSelfAttentionImpl> {
  VitSelfAttentionImpl(VitOptions given, parallel::TensorParallel tp_);
  void reset() override;
  at::Tensor forward(const at::Tensor& x);

  parallel::Linear query{nullptr}, key{nullptr}, value{nullptr};
};
TORCH_MODULE(VitSelfAttention);

// A linear layer as the child "dense".
struct VitDenseImpl : torch::nn::Cloneable<VitDenseImpl> {
  VitDenseImpl(parallel::LinearOptions given, parallel::TensorParallel tp_);
  void reset() override;
  at::Tensor forward(const at::Tensor& x) { return dense->forward(x); }

  parallel::LinearOptions options;
  parallel::TensorParallel tp;
  parallel::Linear dense{nullptr};
};
TORCH_MODULE(VitDense);

struct VitAttentionImpl : VitModule<VitAttentionImpl> {
  VitAttentionImpl(VitOptions given, parallel::TensorParallel tp_);
  void reset() override;
  at::Tensor forward(const at::Tensor& x) { return output->forward(attention->forward(x)); }

  VitSelfAttention attention{nullptr};
  VitDense output{nullptr};
};
TORCH_MODULE(VitAttention);

struct VitBlockImpl : VitModule<VitBlockImpl> {
  VitBlockImpl(VitOptions given, parallel::TensorParallel tp_);
  void reset() override;
  // [n, tokens, width] -> the same.
  at::Tensor forward(const at::Tensor& x);

  VitAttention attention{nullptr};
  VitDense intermediate{nullptr}, output{nullptr};
  parallel::LayerNorm layernorm_before{nullptr}, layernorm_after{nullptr};
  parallel::Dropout dropout{nullptr};
};
TORCH_MODULE(VitBlock);

// Child "layer", a list of blocks.
struct VitEncoderImpl : VitModule<VitEncoderImpl> {
  VitEncoderImpl(VitOptions given, parallel::TensorParallel tp_);
  void reset() override;

  torch::nn::ModuleList layer{nullptr};
};
TORCH_MODULE(VitEncoder);

struct VitModelImpl : VitModule<VitModelImpl> {
  VitModelImpl(VitOptions given, parallel::TensorParallel tp_);
  void reset() override;
  // [n, in_channels, image_size, image_size] -> the last block's output [n, tokens, width], without
  // `layernorm`.
  at::Tensor forward(const at::Tensor& x);

  VitEmbeddings embeddings{nullptr};
  VitEncoder encoder{nullptr};
  parallel::LayerNorm layernorm{nullptr};
};
TORCH_MODULE(VitModel);

parallel::LayerNorm layer_norm(const VitOptions& o, const parallel::TensorParallel& tp);

}  // namespace weft::models::internal
