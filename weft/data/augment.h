// Augment: makes a float batch from image bytes in one pass: crop, flip, normalize. No tensor
// operation per sample.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/data/image_set.h"

namespace weft::data {

struct AugmentOptions {
  // Pixels of black padding on each side before a random crop back to the image's size, 0 to 127.
  // 0: no crop.
  int crop_padding = 0;
  bool flip = false;                 // Mirror left-right with probability 1/2.
  std::vector<float> mean = {0.0f};  // Mean of each channel, or one for all channels.
  std::vector<float> std = {1.0f};   // Standard deviation, as many as there are means.
  std::uint64_t seed = 0;
};

// out = (pixel / 255 - mean) / std of the shifted and mirrored pixel. Padding counts as pixel 0, as
// in torchvision's RandomCrop before ToTensor and Normalize. The random draw of a sample depends
// only on (seed, epoch, its index), and not on rank, world, batch or order of calls.
class Augment {
 public:
  // Throws Error(kInvalidArgument) for a std that is not positive, unequal lengths, or padding out
  // of range.
  explicit Augment(AugmentOptions options = {});

  // Writes images `indices` of `set` to out, float32 [indices.size(), channels, height, width].
  // Thread-safe. Throws Error(kInvalidArgument) for an index outside the set, and if the number of
  // means fits neither one nor the set's channels.
  void apply(const ImageSet& set, std::span<const std::int64_t> indices, std::int64_t epoch,
             float* out) const;

  // Random draw of a sample: offset of the crop from the image, and whether to mirror it.
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
