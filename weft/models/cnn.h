// Cnn: the small convolutional net of the tutorials:
//
//   conv 3x3 (32) - relu - pool 2 - conv 3x3 (64) - relu - pool 2 - fc 128 - relu - fc classes
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "weft/parallel/compose/model.h"

namespace weft::models {

struct CnnOptions {
  std::int64_t in_channels = 1;
  std::int64_t image_size = 28;  // Height, and width unless image_width is set; at least 4.
  std::int64_t num_classes = 10;
  std::int64_t image_width = 0;  // 0: image_size.

  // Values of an image after both convolutions.
  std::int64_t features() const {
    return 64 * (image_size / 4) * ((image_width > 0 ? image_width : image_size) / 4);
  }
};

// Parameters conv1, conv2, fc1, fc2 with libtorch's initialization; 421,642 with the defaults.
struct CnnImpl : torch::nn::Cloneable<CnnImpl> {
  explicit CnnImpl(CnnOptions options = {});
  void reset() override;
  // [n, in_channels, height, width] -> logits [n, num_classes].
  at::Tensor forward(const at::Tensor& x);

  CnnOptions options;
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Cnn);

// The same net as blocks for parallelize(), one layer per block, without a loss.
parallel::BlockModel cnn_blocks(const CnnOptions& options);

}  // namespace weft::models
