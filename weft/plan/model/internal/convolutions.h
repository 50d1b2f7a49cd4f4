// Builds the operators of convolutional blocks: convolutions, batch norms, activations, pools.
#pragma once

#include <cstdint>
#include <string>

#include "weft/plan/model/blocks.h"

namespace weft::plan::internal {

// An image on its way through the network: channels and size.
struct Shape {
  std::int64_t channels = 3, height = 224, width = 224;
};

struct Kernel {
  std::int64_t height = 3, width = 3, stride = 1, groups = 1;
};

// Builds one block after the other. All sizes are those of one micro-batch.
class ConvolutionMaker {
 public:
  ConvolutionMaker(const Split& split, std::int64_t batch);

  void begin(const std::string& name);
  ModelBlock end(const Shape& output);

  // Each returns the shape of its output, with "same" padding.
  Shape convolution(const Shape& in, std::int64_t channels, const Kernel& kernel);
  void batch_norm(const Shape& at, bool relu);
  Shape pool(const Shape& in, std::int64_t side, std::int64_t stride);
  void add(const Shape& at);                  // Residual addition and its activation.
  void move(const Shape& at, double passes);  // Copies: concatenation, upsampling.
  // Sums of the gradients of arrays that several operations read.
  void add_gradients(const Shape& at, int times);
  void linear(std::int64_t in, std::int64_t out);  // Of each sample, with bias.
  void loss(std::int64_t classes);
  void first() { first_ = true; }  // The next convolution needs no gradient of its input.

 private:
  double elements(const Shape& at) const;

  const Split& split_;
  std::int64_t batch_;
  double e_;
  bool first_ = false;
  ModelBlock block_;
};

Blocks resnet_blocks(const Model& model, const Split& split);
Blocks amoebanet_blocks(const Model& model, const Split& split);
Blocks unet_blocks(const Model& model, const Split& split);
Blocks vgg_blocks(const Model& model, const Split& split);
Blocks cnn_blocks(const Model& model, const Split& split);

}  // namespace weft::plan::internal
