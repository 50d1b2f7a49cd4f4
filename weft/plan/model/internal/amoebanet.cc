// AmoebaNet-D (Real et al. 2018) as GPipe and torchgpipe train it: a stem, two reduction cells,
// three groups of normal cells with a reduction cell between them, and a classifier.
#include <algorithm>
#include <cmath>

#include "weft/plan/model/internal/convolutions.h"

namespace weft::plan::internal {
namespace {

// Convolution, batch norm and activation.
Shape unit(ConvolutionMaker& maker, const Shape& in, std::int64_t channels, const Kernel& kernel) {
  const Shape at = maker.convolution(in, channels, kernel);
  maker.batch_norm(at, true);
  return at;
}

constexpr Kernel kOne = {.height = 1, .width = 1};

Shape separable_7(ConvolutionMaker& maker, const Shape& in, std::int64_t stride) {
  const std::int64_t quarter = std::max<std::int64_t>(1, in.channels / 4);
  Shape at = unit(maker, in, quarter, kOne);
  at = unit(maker, at, quarter, {.height = 1, .width = 7, .stride = stride});
  at.height = in.height;
  at = unit(maker, {quarter, in.height, at.width}, quarter, {.height = 7, .width = 1});
  at.height = (in.height + stride - 1) / stride;
  return unit(maker, at, in.channels, kOne);
}

Shape bottleneck_3(ConvolutionMaker& maker, const Shape& in, std::int64_t stride) {
  const std::int64_t quarter = std::max<std::int64_t>(1, in.channels / 4);
  Shape at = unit(maker, in, quarter, kOne);
  at = unit(maker, at, quarter, {.stride = stride});
  return unit(maker, at, in.channels, kOne);
}

// States 0 and 1 are the outputs of the two previous cells, brought to `channels` by 1x1
// convolutions. A cell adds pairs of operations and concatenates the states that it names.
struct CellInput {
  Shape previous, before;
};

Shape normal_cell(ConvolutionMaker& maker, const CellInput& in, std::int64_t channels) {
  const Shape at = unit(maker, in.previous, channels, kOne);
  unit(maker, {in.before.channels, at.height, at.width}, channels, kOne);
  for (int i = 0; i < 3; ++i) unit(maker, at, channels, kOne);
  for (int i = 0; i < 2; ++i) separable_7(maker, at, 1);
  for (int i = 0; i < 3; ++i) maker.pool(at, 3, 1);
  for (int i = 0; i < 5; ++i) maker.add(at);
  const Shape out = {4 * channels, at.height, at.width};
  maker.move(out, 2);
  maker.add_gradients(at, 6);
  return out;
}

Shape reduction_cell(ConvolutionMaker& maker, const CellInput& in, std::int64_t channels) {
  const Shape at = unit(maker, in.previous, channels, kOne);
  unit(maker, {in.before.channels, at.height, at.width}, channels, kOne);
  const Shape half = bottleneck_3(maker, at, 2);
  separable_7(maker, at, 2);
  unit(maker, half, channels, kOne);
  for (int i = 0; i < 3; ++i) maker.pool(at, 3, 2);
  for (int i = 0; i < 5; ++i) maker.add(half);
  const Shape out = {3 * channels, half.height, half.width};
  maker.move(out, 2);
  maker.add_gradients(half, 6);
  return out;
}

}  // namespace

Blocks amoebanet_blocks(const Model& model, const Split& split) {
  ConvolutionMaker maker(split, std::max<std::int64_t>(1, std::llround(split.micro_batch)));
  Blocks blocks;
  std::int64_t channels = std::max<std::int64_t>(4, model.base / 4);
  maker.begin("stem");
  maker.first();
  CellInput in;
  in.previous = unit(maker, {model.channels, model.image, model.image}, channels, {.stride = 2});
  in.before = in.previous;
  blocks.push_back(std::make_shared<const ModelBlock>(maker.end(in.previous)));
  const auto cell = [&](bool reduces) {
    maker.begin(reduces ? "reduction cell" : "normal cell");
    if (reduces) channels *= 2;
    const Shape out =
        reduces ? reduction_cell(maker, in, channels) : normal_cell(maker, in, channels);
    ModelBlock block = maker.end(out);
    // Both the cell's output and the previous one's go on to the next cell.
    block.output_bytes *= 2;
    blocks.push_back(std::make_shared<const ModelBlock>(std::move(block)));
    in = {out, in.previous};
  };
  for (int i = 0; i < 2; ++i) cell(true);
  const std::int64_t repeats = std::max<std::int64_t>(1, model.layers / 3);
  for (int group = 0; group < 3; ++group) {
    if (group > 0) cell(true);
    for (std::int64_t i = 0; i < repeats; ++i) cell(false);
  }
  maker.begin("head");
  maker.pool(in.previous, in.previous.height, in.previous.height);
  maker.linear(in.previous.channels, model.classes);
  maker.loss(model.classes);
  blocks.push_back(std::make_shared<const ModelBlock>(maker.end({model.classes, 1, 1})));
  return blocks;
}

}  // namespace weft::plan::internal
