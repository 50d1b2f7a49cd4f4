#include "weft/models/vision/internal/patches.h"

#include <torch/torch.h>

#include "weft/base/error.h"

namespace weft::models::internal {

void require_patches(const std::string& net, const PatchOptions& options) {
  WEFT_REQUIRE(options.image_size > 0 && options.patch > 0,
               net + ": image size and patch must be at least 1");
  if (options.image_size % options.patch == 0) return;
  std::string good;
  for (std::int64_t p = 1; p <= options.image_size; ++p) {
    if (options.image_size % p == 0) good += (good.empty() ? "" : ", ") + std::to_string(p);
  }
  const std::string side = std::to_string(options.image_size),
                    patch = std::to_string(options.patch);
  throw Error(Errc::kInvalidArgument, net + ": patches of " + patch + "x" + patch +
                                          " do not fill images of " + side + "x" + side +
                                          "; these do: " + good);
}

parallel::Conv2d patch_projection(const PatchOptions& options, const parallel::TensorParallel& tp) {
  return parallel::Conv2d(parallel::Conv2dOptions{.in = options.in_channels,
                                                  .out = options.width,
                                                  .kernel = options.patch,
                                                  .stride = options.patch},
                          tp);
}

at::Tensor project_patches(const std::string& net, const at::Tensor& x, std::int64_t image_size,
                           parallel::Conv2d projection) {
  WEFT_REQUIRE(x.dim() == 4 && x.size(2) == image_size && x.size(3) == image_size,
               net + ": images must be [n, channels, " + std::to_string(image_size) + ", " +
                   std::to_string(image_size) + "]");
  return projection->forward(x).flatten(2).transpose(1, 2);
}

}  // namespace weft::models::internal
