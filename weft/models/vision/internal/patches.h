// Splits an image into patches and projects each to a vector, by a convolution whose stride equals
// its kernel size.
#pragma once

#include <cstdint>
#include <string>

#include "weft/parallel/tensor/conv.h"

namespace weft::models::internal {

struct PatchOptions {
  std::int64_t image_size = 0, patch = 0, in_channels = 0, width = 0;
};

// Throws Error(kInvalidArgument) if patches do not fill the image, naming sizes that do.
void require_patches(const std::string& net, const PatchOptions& options);

// Returns a projection that is whole on every rank, with libtorch's own initial values.
parallel::Conv2d patch_projection(const PatchOptions& options, const parallel::TensorParallel& tp);

// [n, channels, image_size, image_size] -> [n, patches, width].
at::Tensor project_patches(const std::string& net, const at::Tensor& x, std::int64_t image_size,
                           parallel::Conv2d projection);

}  // namespace weft::models::internal
