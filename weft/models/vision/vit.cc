#include "weft/models/vision/vit.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include "weft/base/error.h"
#include "weft/models/vision/internal/holder.h"
#include "weft/models/vision/internal/patches.h"
#include "weft/models/vision/internal/vit_modules.h"

namespace weft::models {
namespace {

using internal::VitModel;
using internal::VitModelImpl;
using parallel::LayerNorm;
using parallel::Linear;
using parallel::TensorParallel;

VitOptions complete(VitOptions o, const TensorParallel& tp) {
  internal::require_patches("Vit", {{o.image_size, o.image_width}, o.patch});
  WEFT_REQUIRE(o.in_channels > 0 && o.num_classes > 0 && o.layers > 0 && o.width > 0 &&
                   o.heads > 0 && o.hidden >= 0,
               "Vit: channels, classes, layers, width, heads and hidden units must be at least 1");
  WEFT_REQUIRE(o.width % o.heads == 0, "Vit: a width of " + std::to_string(o.width) +
                                           " does not divide by " + std::to_string(o.heads) +
                                           " heads");
  WEFT_REQUIRE(o.dropout >= 0 && o.dropout < 1, "Vit: dropout must be in [0, 1)");
  WEFT_REQUIRE(o.initial_std >= 0 && o.norm_eps > 0,
               "Vit: initial_std must be at least 0 and norm_eps above 0");
  if (o.hidden == 0) o.hidden = 4 * o.width;
  parallel::even_part("Vit: heads", o.heads, tp.size());
  return o;
}

Linear classifier_of(const VitOptions& o, const TensorParallel& tp) {
  return Linear(
      parallel::LinearOptions{.in = o.width, .out = o.num_classes, .normal = o.initial_std}, tp);
}

at::Tensor head_of(const at::Tensor& x, VitPool pool, LayerNorm norm, Linear classifier) {
  const at::Tensor y = norm->forward(x);
  return classifier->forward(pool == VitPool::kToken ? y.select(1, 0) : y.mean(1));
}

engine::Block head_block(VitPool pool, const LayerNorm& norm, const Linear& classifier) {
  const auto inner = std::make_shared<torch::nn::Module>("Holder");
  inner->register_module("layernorm", norm);
  return internal::block_of(
      "head", {{"vit", inner}, {"classifier", classifier.ptr()}},
      [=](const at::Tensor& x) { return head_of(x, pool, norm, classifier); });
}

std::string vit_name(std::size_t block) { return "vit.encoder.layer." + std::to_string(block); }

VitModelImpl& model_of(const VitImpl& net) { return *net.vit->as<VitModelImpl>(); }

}  // namespace

VitImpl::VitImpl(VitOptions given, TensorParallel tp_)
    : options(complete(given, tp_)), tp(std::move(tp_)) {
  VitImpl::reset();
}

void VitImpl::reset() {
  vit = register_module("vit", VitModel(options, tp).ptr());
  classifier = register_module("classifier", classifier_of(options, tp));
}

at::Tensor VitImpl::forward(const at::Tensor& x) {
  VitModelImpl& model = model_of(*this);
  return head_of(model.forward(x), options.pool, model.layernorm, classifier);
}

std::vector<engine::Block> VitImpl::parts() const {
  const VitModelImpl& model = model_of(*this);
  std::vector<engine::Block> parts = {engine::block("vit.embeddings", model.embeddings)};
  const auto& blocks = model.encoder->layer;
  for (std::size_t i = 0; i < blocks->size(); ++i)
    parts.push_back(engine::block(vit_name(i), blocks->ptr<internal::VitBlockImpl>(i)));
  parts.push_back(head_block(options.pool, model.layernorm, classifier));
  return parts;
}

parallel::BlockModel vit_blocks(const VitOptions& given) {
  using parallel::Contexts;
  const VitOptions options = complete(given, {});
  parallel::BlockModel model;
  model.blocks.push_back({"vit.embeddings", [options](const Contexts& with) {
                            return engine::block(internal::VitEmbeddings(options, with.tp));
                          }});
  for (std::size_t i = 0; i < static_cast<std::size_t>(options.layers); ++i) {
    model.blocks.push_back({vit_name(i), [options](const Contexts& with) {
                              return engine::block(internal::VitBlock(options, with.tp));
                            }});
  }
  model.blocks.push_back({"head", [options](const Contexts& with) {
                            return head_block(options.pool, internal::layer_norm(options, with.tp),
                                              classifier_of(options, with.tp));
                          }});
  model.splits = {{"heads", options.heads}, {"hidden", options.hidden}};
  return model;
}

}  // namespace weft::models
