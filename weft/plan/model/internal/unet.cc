// U-Net (Ronneberger et al. 2015) with `convs` convolutions of each level, as torchgpipe's
// benchmarks build it: encoder levels of base 2^i filters, a bottleneck of base 2^depth, decoder
// levels of half the encoder's filters. Each convolution is a block of its own, with dropout, norm
// and activation.
#include <algorithm>
#include <cmath>

#include "weft/plan/model/internal/convolutions.h"

namespace weft::plan::internal {
namespace {

struct Stack {
  std::int64_t middle, out;
};

// One block for each convolution. `first_in` may have more channels than the previous block's
// output: the skip connection.
Shape stack(ConvolutionMaker& maker, Blocks& blocks, const Shape& first_in, const Stack& channels,
            std::int64_t convs) {
  Shape at = first_in;
  for (std::int64_t c = 0; c < convs; ++c) {
    maker.begin("convolution");
    at = maker.convolution(at, c + 1 == convs ? channels.out : channels.middle, {});
    maker.move(at, 2);  // dropout
    maker.batch_norm(at, true);
    blocks.push_back(std::make_shared<const ModelBlock>(maker.end(at)));
  }
  return at;
}

}  // namespace

Blocks unet_blocks(const Model& model, const Split& split) {
  ConvolutionMaker maker(split, std::max<std::int64_t>(1, std::llround(split.micro_batch)));
  Blocks blocks;
  const std::int64_t depth = std::clamp<std::int64_t>(model.layers, 1, 8);
  std::vector<Shape> skips;
  Shape at = {model.channels, model.image, model.image};
  maker.first();
  for (std::int64_t i = 0; i < depth; ++i) {
    const std::int64_t filters = model.base << i;
    at = stack(maker, blocks, at, {filters, filters}, model.convs);
    skips.push_back(at);
    maker.begin("pool");
    at = maker.pool(at, 2, 2);
    blocks.push_back(std::make_shared<const ModelBlock>(maker.end(at)));
  }
  at = stack(maker, blocks, at, {model.base << depth, model.base << (depth - 1)}, model.convs);
  for (std::int64_t i = depth - 1; i >= 0; --i) {
    const Shape& skip = skips[static_cast<std::size_t>(i)];
    maker.begin("upsample");
    at = {at.channels + skip.channels, skip.height, skip.width};
    maker.move(at, 3);
    blocks.push_back(std::make_shared<const ModelBlock>(maker.end(at)));
    const std::int64_t filters = std::max<std::int64_t>(1, (model.base << i) / 2);
    at = stack(maker, blocks, at, {filters, filters}, model.convs);
  }
  maker.begin("head");
  at = maker.convolution(at, model.classes, {.height = 1, .width = 1});
  maker.loss(at.height * at.width);
  blocks.push_back(std::make_shared<const ModelBlock>(maker.end(at)));
  return blocks;
}

}  // namespace weft::plan::internal
