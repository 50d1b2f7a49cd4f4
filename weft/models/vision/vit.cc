#include "weft/models/vision/vit.h"

#include <torch/torch.h>

#include "weft/base/error.h"
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
  internal::require_patches("Vit", {o.image_size, o.patch});
  WEFT_REQUIRE(o.in_channels > 0 && o.num_classes > 0 && o.layers > 0 && o.width > 0 && o.heads > 0 && o.hidden >= 0,
               "Vit: channels, classes, layers, width, heads and hidden units are at least 1");
  WEFT_REQUIRE(o.width % o.heads == 0,
               "Vit: a width of " + std::to_string(o.width) + " does not divide by " + std::to_string(o.heads) + " heads");
  WEFT_REQUIRE(o.dropout >= 0 && o.dropout < 1, "Vit: dropout is in [0, 1)");
  WEFT_REQUIRE(o.initial_std >= 0 && o.norm_eps > 0, "Vit: initial_std is at least 0, norm_eps above");
  if (o.hidden == 0) o.hidden = 4 * o.width;
  parallel::even_part("Vit: heads", o.heads, tp.size());
  return o;
}

Linear classifier_of(const VitOptions& o, const TensorParallel& tp) {
  return Linear(parallel::LinearOptions{.in = o.width, .out = o.num_classes, .normal = o.initial_std}, tp);
}

at::Tensor head_of(const at::Tensor& x, VitPool pool, LayerNorm norm, Linear classifier) {
  const at::Tensor y = norm->forward(x);
  return classifier->forward(pool == VitPool::kToken ? y.select(1, 0) : y.mean(1));
}

Part head_part(VitPool pool, const LayerNorm& norm, const Linear& classifier) {
  return {"", holder({{"vit", holder({{"layernorm", norm.ptr()}})}, {"classifier", classifier.ptr()}}),
          [=](const at::Tensor& x) { return head_of(x, pool, norm, classifier); }};
}

std::string vit_prefix(std::size_t block) { return "vit.encoder.layer." + std::to_string(block) + "."; }

VitModelImpl& model_of(const VitImpl& net) { return *net.vit->as<VitModelImpl>(); }

}  // namespace

VitImpl::VitImpl(VitOptions given, TensorParallel tp_) : options(complete(given, tp_)), tp(std::move(tp_)) { VitImpl::reset(); }

void VitImpl::reset() {
  vit = register_module("vit", VitModel(options, tp).ptr());
  classifier = register_module("classifier", classifier_of(options, tp));
}

at::Tensor VitImpl::forward(const at::Tensor& x) {
  VitModelImpl& model = model_of(*this);
  return head_of(model.forward(x), options.pool, model.layernorm, classifier);
}

std::vector<Part> VitImpl::parts() const {
  const VitModelImpl& model = model_of(*this);
  std::vector<Part> parts = {part_of("vit.embeddings.", model.embeddings.ptr())};
  const auto& blocks = model.encoder->layer;
  for (std::size_t i = 0; i < blocks->size(); ++i) parts.push_back(part_of(vit_prefix(i), blocks->ptr<internal::VitBlockImpl>(i)));
  parts.push_back(head_part(options.pool, model.layernorm, classifier));
  return parts;
}

Parts vit_parts(const VitOptions& given, const TensorParallel& tp) {
  const VitOptions options = complete(given, tp);
  const int count = static_cast<int>(options.layers) + 2;
  return {count, [options, tp, count](int number) {
            WEFT_REQUIRE(number >= 0 && number < count, "Vit: no part " + std::to_string(number));
            if (number == 0) return part_of("vit.embeddings.", internal::VitEmbeddings(options, tp).ptr());
            if (number == count - 1) return head_part(options.pool, internal::layer_norm(options, tp), classifier_of(options, tp));
            return part_of(vit_prefix(static_cast<std::size_t>(number - 1)), internal::VitBlock(options, tp).ptr());
          }};
}

}  // namespace weft::models
