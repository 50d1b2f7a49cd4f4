#include "weft/data/augment.h"

#include <algorithm>
#include <string>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::data {
namespace {

// The random stream (base/random.h) of these draws.
constexpr std::uint32_t kAugmentStream = 0x61756730;

struct Plane {
  std::int64_t height, width;
  float scale, bias;  // pixel * scale + bias
};

void copy_row(const std::uint8_t* in, const Plane& plane, const Augment::Draw& draw, float* out) {
  // out[x] = in[x + dx] if that is inside the image, else black.
  const std::int64_t from = std::clamp<std::int64_t>(-draw.dx, 0, plane.width);
  const std::int64_t to = std::clamp<std::int64_t>(plane.width - draw.dx, 0, plane.width);
  std::fill(out, out + from, plane.bias);
  for (std::int64_t x = from; x < to; ++x)
    out[x] = static_cast<float>(in[x + draw.dx]) * plane.scale + plane.bias;
  std::fill(out + to, out + plane.width, plane.bias);
  if (draw.flip) std::reverse(out, out + plane.width);
}

void copy_plane(const std::uint8_t* in, const Plane& plane, const Augment::Draw& draw, float* out) {
  for (std::int64_t y = 0; y < plane.height; ++y, out += plane.width) {
    const std::int64_t row = y + draw.dy;
    if (row < 0 || row >= plane.height) {
      std::fill(out, out + plane.width, plane.bias);
    } else {
      copy_row(in + row * plane.width, plane, draw, out);
    }
  }
}

}  // namespace

Augment::Augment(AugmentOptions options) : options_(std::move(options)) {
  WEFT_REQUIRE(
      options_.crop_padding >= 0 && options_.crop_padding < 128,
      "Augment: crop_padding must be 0 to 127, got " + std::to_string(options_.crop_padding));
  WEFT_REQUIRE(!options_.mean.empty() && options_.mean.size() == options_.std.size(),
               "Augment: mean and std must each have one value, or one value for each channel");
  for (const float std : options_.std)
    WEFT_REQUIRE(std > 0, "Augment: std must be positive, got " + std::to_string(std));
}

Augment::Draw Augment::draw(std::int64_t epoch, std::int64_t index) const {
  Draw draw;
  if (options_.crop_padding == 0 && !options_.flip) return draw;
  // Each sample of each epoch has its own position in the stream, up to 2^40 samples.
  Random random(options_.seed, kAugmentStream,
                static_cast<std::uint64_t>(epoch) << 40 | static_cast<std::uint64_t>(index));
  const int choices = 2 * options_.crop_padding + 1;
  draw.dy = static_cast<int>(random.below(choices)) - options_.crop_padding;
  draw.dx = static_cast<int>(random.below(choices)) - options_.crop_padding;
  draw.flip = options_.flip && random.below(2) == 1;
  return draw;
}

void Augment::apply(const ImageSet& set, std::span<const std::int64_t> indices, std::int64_t epoch,
                    float* out) const {
  const std::size_t channels = static_cast<std::size_t>(set.channels);
  WEFT_REQUIRE(options_.mean.size() == 1 || options_.mean.size() == channels,
               "Augment: " + std::to_string(options_.mean.size()) + " means for " +
                   std::to_string(channels) + " channels");
  for (const std::int64_t index : indices) {
    WEFT_REQUIRE(index >= 0 && index < set.size(), "Augment: sample " + std::to_string(index) +
                                                       " is outside the data set, which has " +
                                                       std::to_string(set.size()) + " samples");
    const Draw how = draw(epoch, index);
    const std::uint8_t* in = set.pixels.data() + index * set.image_bytes();
    for (std::size_t c = 0; c < channels; ++c) {
      const std::size_t k = options_.mean.size() == 1 ? 0 : c;
      const Plane plane{set.height, set.width, 1.0f / (255.0f * options_.std[k]),
                        -options_.mean[k] / options_.std[k]};
      copy_plane(in, plane, how, out);
      in += set.height * set.width;
      out += set.height * set.width;
    }
  }
}

}  // namespace weft::data
