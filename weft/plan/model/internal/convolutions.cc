#include "weft/plan/model/internal/convolutions.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"

namespace weft::plan::internal {

ConvolutionMaker::ConvolutionMaker(const Split& split, std::int64_t batch)
    : split_(split), batch_(batch), e_(element_bytes(split.precision)) {}

double ConvolutionMaker::elements(const Shape& at) const {
  return static_cast<double>(batch_) * static_cast<double>(at.channels) *
         static_cast<double>(at.height) * static_cast<double>(at.width);
}

void ConvolutionMaker::begin(const std::string& name) { block_ = ModelBlock{.name = name}; }

ModelBlock ConvolutionMaker::end(const Shape& output) {
  block_.output_bytes = elements(output) * e_;
  // Recomputation in full keeps the input of the block. It counts as the previous block's output.
  block_.kept_input = block_.output_bytes;
  block_.kept_selective = block_.kept_all;
  return block_;
}

Shape ConvolutionMaker::convolution(const Shape& in, std::int64_t channels, const Kernel& kernel) {
  const Shape out = {channels, (in.height + kernel.stride - 1) / kernel.stride,
                     (in.width + kernel.stride - 1) / kernel.stride};
  const std::int64_t per_group = in.channels / kernel.groups;
  const std::int64_t k = per_group * kernel.height * kernel.width;
  const double weights = static_cast<double>(channels) * static_cast<double>(k);
  block_.operators.push_back(
      {.kind = OperatorKind::kConvolution,
       .name = "convolution",
       .m = batch_ * out.height * out.width,
       .n = std::max<std::int64_t>(1, channels / kernel.groups),
       .k = k,
       .batch = kernel.groups,
       .input = elements(in),
       .weights = weights,
       .output = elements(out),
       .winograd = kernel.height == 3 && kernel.width == 3 && kernel.stride == 1,
       .no_input_gradient = first_});
  first_ = false;
  block_.parameters += weights;
  block_.kept_all += elements(in) * e_;
  // Without channels-last activations, tensor cores need conversions around the product.
  if (!split_.software.channels_last && e_ < 4) move(out, 2);
  return out;
}

// Statistics read the input once more. Backward reads input and gradient twice. A separate
// activation reads and writes once more in forward.
void ConvolutionMaker::batch_norm(const Shape& at, bool relu) {
  const bool fused = split_.software.compiled || split_.software.fused_elementwise;
  const double more = relu && !fused ? 2 : 0;
  block_.operators.push_back({.kind = OperatorKind::kMemory,
                              .name = "batch norm",
                              .forward_bytes = elements(at) * (3 + more) * e_,
                              .backward_bytes = elements(at) * (5 + 1.5 * more) * e_,
                              .forward_kernels = relu && !fused ? 3 : 2,
                              .backward_kernels = relu && !fused ? 3 : 2});
  block_.parameters += 2 * static_cast<double>(at.channels);
  // Compilers compute the norm's result again, so that one of its input and output is kept.
  if (!split_.software.compiled) block_.kept_all += elements(at) * e_;
}

Shape ConvolutionMaker::pool(const Shape& in, std::int64_t side, std::int64_t stride) {
  const Shape out = {in.channels, (in.height + stride - 1) / stride,
                     (in.width + stride - 1) / stride};
  // Backward needs the place of each maximum: an index of 8 bytes. A pool over the whole image is
  // an average and has none.
  const double indices = side < in.height ? 8 * elements(out) : 0;
  block_.operators.push_back({.kind = OperatorKind::kMemory,
                              .name = "pool",
                              .forward_bytes = (elements(in) + elements(out)) * e_ + indices,
                              .backward_bytes = (2 * elements(in) + elements(out)) * e_ + indices});
  block_.kept_all += elements(in) * e_;
  return out;
}

void ConvolutionMaker::add(const Shape& at) {
  const bool fused = split_.software.compiled || split_.software.fused_elementwise;
  block_.operators.push_back({.kind = OperatorKind::kMemory,
                              .name = "addition",
                              .forward_bytes = elements(at) * (fused ? 1 : 5) * e_,
                              .backward_bytes = elements(at) * (fused ? 2 : 5) * e_,
                              .forward_kernels = fused ? 1 : 2,
                              .backward_kernels = fused ? 1 : 2});
  block_.kept_all += elements(at) * e_;
}

void ConvolutionMaker::move(const Shape& at, double passes) {
  block_.operators.push_back({.kind = OperatorKind::kMemory,
                              .name = "copy",
                              .forward_bytes = elements(at) * passes * e_,
                              .backward_bytes = elements(at) * passes * e_});
}

void ConvolutionMaker::add_gradients(const Shape& at, int times) {
  block_.operators.push_back({.kind = OperatorKind::kMemory,
                              .name = "gradients",
                              .backward_bytes = elements(at) * 3 * times * e_,
                              .forward_kernels = 0,
                              .backward_kernels = times});
}

void ConvolutionMaker::linear(std::int64_t in, std::int64_t out) {
  block_.operators.push_back({.name = "linear", .m = batch_, .n = out, .k = in});
  block_.parameters += (static_cast<double>(in) + 1) * static_cast<double>(out);
  block_.kept_all += static_cast<double>(batch_ * in) * e_;
}

void ConvolutionMaker::loss(std::int64_t classes) {
  const double logits = static_cast<double>(batch_ * classes);
  block_.operators.push_back({.kind = OperatorKind::kMemory,
                              .name = "loss",
                              .forward_bytes = logits * 26,
                              .backward_bytes = logits * 14,
                              .forward_kernels = 4,
                              .backward_kernels = 3});
  block_.kept_all += 4 * logits;
}

// The usual small network: two 3x3 convolutions with pools, two linear layers (models/cnn.h).
Blocks cnn_blocks(const Model& model, const Split& split) {
  ConvolutionMaker maker(split, std::max<std::int64_t>(1, std::llround(split.micro_batch)));
  Blocks blocks;
  Shape at = {model.channels, model.image, model.image};
  maker.first();
  for (const std::int64_t channels : {model.base, 2 * model.base}) {
    maker.begin("convolution");
    at = maker.convolution(at, channels, {});
    maker.add(at);
    at = maker.pool(at, 2, 2);
    blocks.push_back(std::make_shared<const ModelBlock>(maker.end(at)));
  }
  maker.begin("head");
  maker.linear(at.channels * at.height * at.width, 128);
  maker.linear(128, model.classes);
  maker.loss(model.classes);
  blocks.push_back(std::make_shared<const ModelBlock>(maker.end({model.classes, 1, 1})));
  return blocks;
}

}  // namespace weft::plan::internal

namespace weft::plan {

Blocks convolution_blocks(const Model& model, const Split& split) {
  WEFT_REQUIRE(split.tp == 1 && split.cp == 1 && split.ep == 1,
               std::string(to_string(model.family)) +
                   " models have no tp, cp or ep; use dp, fsdp "
                   "and pp");
  switch (model.family) {
    case Family::kCnn: return internal::cnn_blocks(model, split);
    case Family::kAmoebaNet: return internal::amoebanet_blocks(model, split);
    case Family::kUnet: return internal::unet_blocks(model, split);
    case Family::kVgg: return internal::vgg_blocks(model, split);
    default: return internal::resnet_blocks(model, split);
  }
}

}  // namespace weft::plan
