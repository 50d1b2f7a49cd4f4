#include "weft/models/vision/internal/patches.h"

#include <torch/types.h>

#include "weft/base/error.h"

namespace weft::models::internal {

void require_patches(const std::string& net, const PatchOptions& options) {
  const ImageSize& image = options.image;
  WEFT_REQUIRE(image.height > 0 && image.width >= 0 && options.patch > 0,
               net + ": image size and patch must be at least 1");
  const auto fills = [&](std::int64_t patch) {
    return image.height % patch == 0 && image.wide() % patch == 0;
  };
  if (fills(options.patch)) return;
  std::string good;
  for (std::int64_t p = 1; p <= image.height; ++p) {
    if (fills(p)) good += (good.empty() ? "" : ", ") + std::to_string(p);
  }
  const std::string patch = std::to_string(options.patch);
  throw Error(Errc::kInvalidArgument, net + ": patches of " + patch + "x" + patch +
                                          " do not fill images of " + std::to_string(image.height) +
                                          "x" + std::to_string(image.wide()) +
                                          "; these do: " + good);
}

parallel::Conv2d patch_projection(const PatchOptions& options, const parallel::TensorParallel& tp) {
  return parallel::Conv2d(parallel::Conv2dOptions{.in = options.in_channels,
                                                  .out = options.width,
                                                  .kernel = options.patch,
                                                  .stride = options.patch},
                          tp);
}

at::Tensor project_patches(const std::string& net, const at::Tensor& x, const ImageSize& image,
                           parallel::Conv2d projection) {
  WEFT_REQUIRE(x.dim() == 4 && x.size(2) == image.height && x.size(3) == image.wide(),
               net + ": images must be [n, channels, " + std::to_string(image.height) + ", " +
                   std::to_string(image.wide()) + "]");
  return projection->forward(x).flatten(2).transpose(1, 2);
}

}  // namespace weft::models::internal
