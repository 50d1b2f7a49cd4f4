// An image as a sequence of patches, each projected to a vector: a convolution whose stride is its
// kernel.
#pragma once

#include <cstdint>
#include <string>

#include "weft/parallel/tensor/conv.h"

namespace weft::models::internal {

struct PatchOptions {
  std::int64_t image_size = 0, patch = 0, in_channels = 0, width = 0;
};

// Throws Error(kInvalidArgument) where patches do not fill the image, naming those that do.
void require_patches(const std::string& net, const PatchOptions& options);

// Whole on every rank, libtorch's own initial values.
parallel::Conv2d patch_projection(const PatchOptions& options, const parallel::TensorParallel& tp);

// [n, channels, image_size, image_size] -> [n, patches, width].
at::Tensor project_patches(const std::string& net, const at::Tensor& x, std::int64_t image_size,
                           parallel::Conv2d projection);

}  // namespace weft::models::internal
