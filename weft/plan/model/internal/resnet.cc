// ResNets (He et al. 2015, the stride in the 3x3 convolution as in torchvision), and wide ones
// whose 3x3 convolution has `factor` times the filters of the stage (Zagoruyko and Komodakis 2016,
// as in Alpa's benchmarks).
#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/error.h"
#include "weft/plan/model/internal/convolutions.h"

namespace weft::plan::internal {
namespace {

struct Depth {
  std::int64_t layers;
  std::array<int, 4> blocks;
  bool bottleneck;
};
constexpr Depth kDepths[] = {{18, {2, 2, 2, 2}, false},
                             {34, {3, 4, 6, 3}, false},
                             {50, {3, 4, 6, 3}, true},
                             {101, {3, 4, 23, 3}, true},
                             {152, {3, 8, 36, 3}, true}};

const Depth& depth_of(const Model& model) {
  for (const Depth& depth : kDepths) {
    if (depth.layers == model.layers) return depth;
  }
  throw Error(Errc::kInvalidArgument, "model.layers = " + std::to_string(model.layers) +
                                          " is no ResNet; use 18, 34, 50, 101 or 152");
}

struct Stage {
  std::int64_t filters, stride;
};

Shape basic(ConvolutionMaker& maker, const Shape& in, const Stage& stage) {
  Shape at = maker.convolution(in, stage.filters, {.stride = stage.stride});
  maker.batch_norm(at, true);
  at = maker.convolution(at, stage.filters, {});
  maker.batch_norm(at, false);
  return at;
}

Shape bottleneck(ConvolutionMaker& maker, const Shape& in, const Stage& stage,
                 std::int64_t factor) {
  Shape at = maker.convolution(in, stage.filters, {.height = 1, .width = 1});
  maker.batch_norm(at, true);
  at = maker.convolution(at, stage.filters * factor, {.stride = stage.stride});
  maker.batch_norm(at, true);
  at = maker.convolution(at, stage.filters * 4, {.height = 1, .width = 1});
  maker.batch_norm(at, false);
  return at;
}

Shape stem(ConvolutionMaker& maker, const Model& model, Blocks& blocks) {
  maker.begin("stem");
  maker.first();
  Shape at = {model.channels, model.image, model.image};
  at = model.small_stem ? maker.convolution(at, model.base, {})
                        : maker.convolution(at, model.base, {.height = 7, .width = 7, .stride = 2});
  maker.batch_norm(at, true);
  if (!model.small_stem) at = maker.pool(at, 3, 2);
  blocks.push_back(std::make_shared<const ModelBlock>(maker.end(at)));
  return at;
}

}  // namespace

Blocks resnet_blocks(const Model& model, const Split& split) {
  const Depth& depth = depth_of(model);
  ConvolutionMaker maker(split, std::max<std::int64_t>(1, std::llround(split.micro_batch)));
  Blocks blocks;
  Shape at = stem(maker, model, blocks);
  for (int s = 0; s < 4; ++s) {
    const std::int64_t filters = model.base << s;
    for (int b = 0; b < depth.blocks[static_cast<std::size_t>(s)]; ++b) {
      const Stage stage = {filters, s > 0 && b == 0 ? 2 : 1};
      maker.begin("residual block");
      const Shape in = at;
      at = depth.bottleneck ? bottleneck(maker, in, stage, model.factor) : basic(maker, in, stage);
      if (in.channels != at.channels || stage.stride != 1) {
        maker.convolution(in, at.channels, {.height = 1, .width = 1, .stride = stage.stride});
        maker.batch_norm(at, false);
      }
      maker.add(at);
      blocks.push_back(std::make_shared<const ModelBlock>(maker.end(at)));
    }
  }
  maker.begin("head");
  maker.pool(at, at.height, at.height);
  maker.linear(at.channels, model.classes);
  maker.loss(model.classes);
  blocks.push_back(std::make_shared<const ModelBlock>(maker.end({model.classes, 1, 1})));
  return blocks;
}

}  // namespace weft::plan::internal
