#include "weft/models/vision/mixer.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/models/vision/internal/holder.h"
#include "weft/models/vision/internal/patches.h"

namespace weft::models {
namespace {

using parallel::Split;
using parallel::TensorParallel;

MixerOptions complete(MixerOptions o) {
  internal::require_patches("Mixer", {{o.image_size, o.image_width}, o.patch});
  WEFT_REQUIRE(o.in_channels > 0 && o.num_classes > 0 && o.layers > 0 && o.width > 0 &&
                   o.token_hidden >= 0 && o.channel_hidden >= 0,
               "Mixer: channels, classes, layers, width and hidden units must be at least 1");
  if (o.token_hidden == 0) o.token_hidden = std::max<std::int64_t>(1, o.width / 2);
  if (o.channel_hidden == 0) o.channel_hidden = 4 * o.width;
  return o;
}

parallel::LayerNorm layer_norm(const MixerOptions& o, const TensorParallel& tp) {
  return parallel::LayerNorm(parallel::NormOptions{.features = o.width, .eps = 1e-6}, tp);
}

parallel::Linear output(const MixerOptions& o, const TensorParallel& tp) {
  return parallel::Linear(parallel::LinearOptions{.in = o.width, .out = o.num_classes}, tp);
}

at::Tensor head_of(const at::Tensor& x, parallel::LayerNorm norm, parallel::Linear head) {
  return head->forward(norm->forward(x).mean(1));
}

engine::Block head_block(const parallel::LayerNorm& norm, const parallel::Linear& head) {
  return internal::block_of("head", {{"norm", norm.ptr()}, {"head", head.ptr()}},
                            [=](const at::Tensor& x) { return head_of(x, norm, head); });
}

std::string mixer_name(std::size_t block) { return "blocks." + std::to_string(block); }

}  // namespace

MixerMlpImpl::MixerMlpImpl(std::int64_t features_, std::int64_t hidden_, TensorParallel tp_)
    : features(features_), hidden(hidden_), tp(std::move(tp_)) {
  MixerMlpImpl::reset();
}

void MixerMlpImpl::reset() {
  fc1 = register_module(
      "fc1",
      parallel::Linear(
          parallel::LinearOptions{.in = features, .out = hidden, .split = Split::kColumn}, tp));
  fc2 = register_module(
      "fc2", parallel::Linear(
                 parallel::LinearOptions{.in = hidden, .out = features, .split = Split::kRow}, tp));
}

at::Tensor MixerMlpImpl::forward(const at::Tensor& x) {
  return fc2->forward(torch::gelu(fc1->forward(x)));
}

MixerBlockImpl::MixerBlockImpl(MixerOptions given, TensorParallel tp_)
    : options(complete(given)), tp(std::move(tp_)) {
  MixerBlockImpl::reset();
}

void MixerBlockImpl::reset() {
  norm1 = register_module("norm1", layer_norm(options, tp));
  mlp_tokens = register_module("mlp_tokens", MixerMlp(options.patches(), options.token_hidden, tp));
  norm2 = register_module("norm2", layer_norm(options, tp));
  mlp_channels =
      register_module("mlp_channels", MixerMlp(options.width, options.channel_hidden, tp));
}

at::Tensor MixerBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + mlp_tokens->forward(norm1->forward(x).transpose(1, 2)).transpose(1, 2);
  return y + mlp_channels->forward(norm2->forward(y));
}

MixerStemImpl::MixerStemImpl(MixerOptions given, TensorParallel tp_)
    : options(complete(given)), tp(std::move(tp_)) {
  MixerStemImpl::reset();
}

void MixerStemImpl::reset() {
  proj =
      register_module("proj", internal::patch_projection({{options.image_size, options.image_width},
                                                          options.patch,
                                                          options.in_channels,
                                                          options.width},
                                                         tp));
}

at::Tensor MixerStemImpl::forward(const at::Tensor& x) {
  return internal::project_patches("Mixer", x, {options.image_size, options.image_width}, proj);
}

MixerImpl::MixerImpl(MixerOptions given, TensorParallel tp_)
    : options(complete(given)), tp(std::move(tp_)) {
  MixerImpl::reset();
}

void MixerImpl::reset() {
  stem = register_module("stem", MixerStem(options, tp));
  blocks = register_module("blocks", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < options.layers; ++i) blocks->push_back(MixerBlock(options, tp));
  norm = register_module("norm", layer_norm(options, tp));
  head = register_module("head", output(options, tp));
}

at::Tensor MixerImpl::forward(const at::Tensor& x) {
  at::Tensor y = stem->forward(x);
  for (const auto& block : *blocks) y = block->as<MixerBlockImpl>()->forward(y);
  return head_of(y, norm, head);
}

std::vector<engine::Block> MixerImpl::parts() const {
  std::vector<engine::Block> parts = {engine::block("stem", stem)};
  for (std::size_t i = 0; i < blocks->size(); ++i)
    parts.push_back(engine::block(mixer_name(i), blocks->ptr<MixerBlockImpl>(i)));
  parts.push_back(head_block(norm, head));
  return parts;
}

parallel::BlockModel mixer_blocks(const MixerOptions& given) {
  using parallel::Contexts;
  const MixerOptions options = complete(given);
  parallel::BlockModel model;
  model.blocks.push_back({"stem", [options](const Contexts& with) {
                            return engine::block(MixerStem(options, with.tp));
                          }});
  for (std::size_t i = 0; i < static_cast<std::size_t>(options.layers); ++i) {
    model.blocks.push_back({mixer_name(i), [options](const Contexts& with) {
                              return engine::block(MixerBlock(options, with.tp));
                            }});
  }
  model.blocks.push_back({"head", [options](const Contexts& with) {
                            return head_block(layer_norm(options, with.tp),
                                              output(options, with.tp));
                          }});
  model.splits = {{"units over patches", options.token_hidden},
                  {"units over channels", options.channel_hidden}};
  return model;
}

}  // namespace weft::models
