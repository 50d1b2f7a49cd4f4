// VGG networks (Simonyan and Zisserman 2014, configurations D and E): 3x3 convolutions, five pools,
// three linear layers. Without batch norms.
#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/error.h"
#include "weft/plan/model/internal/convolutions.h"

namespace weft::plan::internal {

Blocks vgg_blocks(const Model& model, const Split& split) {
  WEFT_REQUIRE(model.layers == 16 || model.layers == 19,
               "model.layers = " + std::to_string(model.layers) + " is no VGG; use 16 or 19");
  constexpr std::int64_t kWidth = 4096;  // of the linear layers
  const std::array<int, 5> convolutions =
      model.layers == 16 ? std::array{2, 2, 3, 3, 3} : std::array{2, 2, 4, 4, 4};
  ConvolutionMaker maker(split, std::max<std::int64_t>(1, std::llround(split.micro_batch)));
  Blocks blocks;
  Shape at = {model.channels, model.image, model.image};
  maker.first();
  std::int64_t channels = model.base;
  for (const int count : convolutions) {
    for (int i = 0; i < count; ++i) {
      maker.begin("convolution");
      at = maker.convolution(at, channels, {});
      maker.add(at);
      if (i + 1 == count) at = maker.pool(at, 2, 2);
      blocks.push_back(std::make_shared<const ModelBlock>(maker.end(at)));
    }
    channels = std::min(2 * channels, 8 * model.base);
  }
  maker.begin("head");
  maker.linear(at.channels * at.height * at.width, kWidth);
  maker.linear(kWidth, kWidth);
  maker.linear(kWidth, model.classes);
  maker.loss(model.classes);
  blocks.push_back(std::make_shared<const ModelBlock>(maker.end({model.classes, 1, 1})));
  return blocks;
}

}  // namespace weft::plan::internal
