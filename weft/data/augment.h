// From bytes to a float batch in one pass: crop, flip, normalize. No tensor operation a sample.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/data/image_set.h"

namespace weft::data {

struct AugmentOptions {
  // > 0: pad with black by so many pixels, then crop at random back to the size (0 to 127).
  int crop_padding = 0;
  bool flip = false;                 // mirror left-right with probability 1/2
  std::vector<float> mean = {0.0f};  // one a channel, or one for all
  std::vector<float> std = {1.0f};
  std::uint64_t seed = 0;
};

// out = (pixel / 255 - mean) / std, of the shifted and mirrored pixel; padding counts as pixel 0,
// as in torchvision's RandomCrop before ToTensor and Normalize. The draw of a sample depends on
// (seed, epoch, its index) only: not on rank, world, batch or call order.
class Augment {
 public:
  // Throws Error(kInvalidArgument) for a std that is not positive, unequal lengths, or padding out
  // of range.
  explicit Augment(AugmentOptions options = {});

  // Writes images `indices` of `set` to out, float32 [indices.size(), channels, height, width].
  // Thread-safe. Throws Error(kInvalidArgument) for an index outside the set or a set with another
  // number of channels.
  void apply(const ImageSet& set, std::span<const std::int64_t> indices, std::int64_t epoch,
             float* out) const;

  // What is done to a sample: the crop's offset against the image, and whether it is mirrored.
  struct Draw {
    int dy = 0;
    int dx = 0;
    bool flip = false;
  };
  Draw draw(std::int64_t epoch, std::int64_t index) const;

 private:
  AugmentOptions options_;
};

}  // namespace weft::data
