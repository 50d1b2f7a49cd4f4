#include "weft/models/vision/internal/vit_modules.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include "weft/models/vision/internal/patches.h"

namespace weft::models::internal {

using parallel::LinearOptions;
using parallel::Split;
using parallel::TensorParallel;

namespace {

at::Tensor drawn(at::IntArrayRef sizes, const VitOptions& o, const TensorParallel& tp) {
  const at::Tensor values = torch::ones(sizes);
  return o.initial_std > 0 ? values.normal_(0, o.initial_std, tp.generator()) : values;
}

LinearOptions linear(std::int64_t in, std::int64_t out, Split split, const VitOptions& o) {
  return {.in = in, .out = out, .split = split, .normal = o.initial_std};
}

parallel::Dropout dropout_of(const VitOptions& o, const TensorParallel& tp) {
  return parallel::Dropout(parallel::DropoutOptions{.p = o.dropout}, tp);
}

}  // namespace

parallel::LayerNorm layer_norm(const VitOptions& o, const TensorParallel& tp) {
  return parallel::LayerNorm(parallel::NormOptions{.features = o.width, .eps = o.norm_eps}, tp);
}

VitPatchesImpl::VitPatchesImpl(VitOptions given, TensorParallel tp_)
    : VitModule(given, std::move(tp_)) {
  VitPatchesImpl::reset();
}

void VitPatchesImpl::reset() {
  projection =
      register_module("projection", patch_projection({{options.image_size, options.image_width},
                                                      options.patch,
                                                      options.in_channels,
                                                      options.width},
                                                     tp));
}

VitEmbeddingsImpl::VitEmbeddingsImpl(VitOptions given, TensorParallel tp_)
    : VitModule(given, std::move(tp_)) {
  VitEmbeddingsImpl::reset();
}

void VitEmbeddingsImpl::reset() {
  if (options.pool == VitPool::kToken)
    cls_token = register_parameter("cls_token", drawn({1, 1, options.width}, options, tp));
  position_embeddings = register_parameter(
      "position_embeddings", drawn({1, options.tokens(), options.width}, options, tp));
  patch_embeddings = register_module("patch_embeddings", VitPatches(options, tp));
  dropout = register_module("dropout", dropout_of(options, tp));
}

at::Tensor VitEmbeddingsImpl::forward(const at::Tensor& x) {
  at::Tensor y = project_patches("Vit", x, {options.image_size, options.image_width},
                                 patch_embeddings->projection);
  if (cls_token.defined()) y = torch::cat({cls_token.expand({y.size(0), 1, options.width}), y}, 1);
  return dropout->forward(y + position_embeddings);
}

VitSelfAttentionImpl::VitSelfAttentionImpl(VitOptions given, TensorParallel tp_)
    : VitModule(given, std::move(tp_)) {
  VitSelfAttentionImpl::reset();
}

void VitSelfAttentionImpl::reset() {
  const LinearOptions in = linear(options.width, options.width, Split::kColumn, options);
  query = register_module("query", parallel::Linear(in, tp));
  key = register_module("key", parallel::Linear(in, tp));
  value = register_module("value", parallel::Linear(in, tp));
}

at::Tensor VitSelfAttentionImpl::forward(const at::Tensor& given) {
  // One call for query, key and value, so that backward needs one all-reduce.
  const at::Tensor x = parallel::enter_split(given, parallel::Sequence::kWhole, tp);
  const auto by_head = [&](const parallel::Linear& layer) {
    return layer->multiply(x)
        .view({x.size(0), x.size(1), options.heads / tp.size(), -1})
        .transpose(1, 2);
  };
  return torch::scaled_dot_product_attention(by_head(query), by_head(key), by_head(value))
      .transpose(1, 2)
      .flatten(2);
}

VitDenseImpl::VitDenseImpl(LinearOptions given, TensorParallel tp_)
    : options(given), tp(std::move(tp_)) {
  VitDenseImpl::reset();
}

void VitDenseImpl::reset() { dense = register_module("dense", parallel::Linear(options, tp)); }

VitAttentionImpl::VitAttentionImpl(VitOptions given, TensorParallel tp_)
    : VitModule(given, std::move(tp_)) {
  VitAttentionImpl::reset();
}

void VitAttentionImpl::reset() {
  attention = register_module("attention", VitSelfAttention(options, tp));
  output = register_module(
      "output", VitDense(linear(options.width, options.width, Split::kRow, options), tp));
}

VitBlockImpl::VitBlockImpl(VitOptions given, TensorParallel tp_)
    : VitModule(given, std::move(tp_)) {
  VitBlockImpl::reset();
}

void VitBlockImpl::reset() {
  attention = register_module("attention", VitAttention(options, tp));
  intermediate = register_module(
      "intermediate", VitDense(linear(options.width, options.hidden, Split::kColumn, options), tp));
  output = register_module(
      "output", VitDense(linear(options.hidden, options.width, Split::kRow, options), tp));
  layernorm_before = register_module("layernorm_before", layer_norm(options, tp));
  layernorm_after = register_module("layernorm_after", layer_norm(options, tp));
  dropout = register_module("dropout", dropout_of(options, tp));
}

at::Tensor VitBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + dropout->forward(attention->forward(layernorm_before->forward(x)));
  return y + dropout->forward(
                 output->forward(torch::gelu(intermediate->forward(layernorm_after->forward(y)))));
}

VitEncoderImpl::VitEncoderImpl(VitOptions given, TensorParallel tp_)
    : VitModule(given, std::move(tp_)) {
  VitEncoderImpl::reset();
}

void VitEncoderImpl::reset() {
  layer = register_module("layer", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options.layers; ++i) layer->push_back(VitBlock(options, tp));
}

VitModelImpl::VitModelImpl(VitOptions given, TensorParallel tp_)
    : VitModule(given, std::move(tp_)) {
  VitModelImpl::reset();
}

void VitModelImpl::reset() {
  embeddings = register_module("embeddings", VitEmbeddings(options, tp));
  encoder = register_module("encoder", VitEncoder(options, tp));
  layernorm = register_module("layernorm", layer_norm(options, tp));
}

at::Tensor VitModelImpl::forward(const at::Tensor& x) {
  at::Tensor y = embeddings->forward(x);
  for (const auto& block : *encoder->layer) y = block->as<VitBlockImpl>()->forward(y);
  return y;
}

}  // namespace weft::models::internal
