// Splits an image into patches and projects each to a vector, by a convolution whose stride equals
// its kernel size.
#pragma once

#include <cstdint>
#include <string>

#include "weft/parallel/tensor/conv.h"

namespace weft::models::internal {

// Size of an image in pixels. A width of 0: as the height.
struct ImageSize {
  std::int64_t height = 0, width = 0;

  std::int64_t wide() const { return width > 0 ? width : height; }
};

struct PatchOptions {
  ImageSize image;
  std::int64_t patch = 0, in_channels = 0, width = 0;
};

// Throws Error(kInvalidArgument) if patches do not fill the image, naming sizes that do.
void require_patches(const std::string& net, const PatchOptions& options);

// Returns a projection that is whole on every rank, with libtorch's own initial values.
parallel::Conv2d patch_projection(const PatchOptions& options, const parallel::TensorParallel& tp);

// [n, channels, height, width] -> [n, patches, outputs of the projection]. Throws
// Error(kInvalidArgument) for images of another size.
at::Tensor project_patches(const std::string& net, const at::Tensor& x, const ImageSize& image,
                           parallel::Conv2d projection);

}  // namespace weft::models::internal
