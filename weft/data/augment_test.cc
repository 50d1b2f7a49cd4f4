#include "weft/data/augment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "weft/base/error.h"

namespace weft::data {
namespace {

ImageSet tiny(std::int64_t size, std::int64_t channels) {
  ImageSet set{.channels = channels, .height = 4, .width = 5, .num_classes = 10};
  for (std::int64_t i = 0; i < size * set.image_bytes(); ++i)
    set.pixels.push_back(static_cast<std::uint8_t>(i * 37 % 256));
  set.labels.assign(size, 0);
  return set;
}

// The definition: pad with black, crop at (padding + dy, padding + dx), mirror, then (pixel / 255 -
// mean) / std.
float expected(const ImageSet& set, std::int64_t index, std::int64_t c, std::int64_t y,
               std::int64_t x, Augment::Draw draw, float mean, float std) {
  if (draw.flip) x = set.width - 1 - x;
  y += draw.dy;
  x += draw.dx;
  float pixel = 0;
  if (y >= 0 && y < set.height && x >= 0 && x < set.width) {
    pixel = set.pixels[index * set.image_bytes() + (c * set.height + y) * set.width + x];
  }
  return (pixel / 255 - mean) / std;
}

TEST(Augment, PadsCropsMirrorsAndNormalizes) {
  const ImageSet set = tiny(40, 3);
  const std::vector<float> mean = {0.1f, 0.2f, 0.3f}, std = {0.5f, 0.25f, 1.5f};
  const Augment augment({.crop_padding = 6, .flip = true, .mean = mean, .std = std, .seed = 4});
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 39; i >= 0; --i) indices.push_back(i);
  std::vector<float> out(40 * set.image_bytes());
  augment.apply(set, indices, 3, out.data());
  const float* at = out.data();
  for (const auto index : indices) {
    const auto draw = augment.draw(3, index);
    for (int c = 0; c < 3; ++c)
      for (int y = 0; y < 4; ++y)
        for (int x = 0; x < 5; ++x)
          ASSERT_NEAR(*at++, expected(set, index, c, y, x, draw, mean[c], std[c]), 2e-6);
  }
}

TEST(Augment, DrawsDependOnSeedEpochAndSampleOnly) {
  const ImageSet set = tiny(8, 1);
  const Augment augment({.crop_padding = 2, .flip = true, .seed = 1});
  std::vector<float> together(8 * 20), single(20);
  augment.apply(set, std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, 5, together.data());
  for (std::int64_t i = 7; i >= 0; --i) {
    augment.apply(set, std::vector<std::int64_t>{i}, 5, single.data());
    EXPECT_TRUE(std::equal(single.begin(), single.end(), together.begin() + i * 20)) << i;
  }
}

TEST(Augment, ReachesEveryOffsetAndBothOrientations) {
  const Augment augment({.crop_padding = 2, .flip = true});
  std::set<std::tuple<int, int, bool>> seen;
  for (int i = 0; i < 2000; ++i) {
    const auto draw = augment.draw(0, i);
    seen.insert({draw.dy, draw.dx, draw.flip});
  }
  EXPECT_EQ(seen.size(), 50u);
  EXPECT_EQ(std::get<0>(*seen.begin()), -2);
}

TEST(Augment, RefusesInvalidOptions) {
  EXPECT_THROW(Augment({.crop_padding = -1}), Error);
  EXPECT_THROW(Augment({.mean = {0.f}, .std = {0.f}}), Error);
  EXPECT_THROW(Augment({.mean = {0.f, 1.f}, .std = {1.f}}), Error);
  std::vector<float> out(60);
  EXPECT_THROW(Augment().apply(tiny(2, 1), std::vector<std::int64_t>{2}, 0, out.data()), Error);
  EXPECT_THROW(Augment({.mean = {0.f, 0.f}, .std = {1.f, 1.f}})
                   .apply(tiny(2, 3), std::vector<std::int64_t>{0}, 0, out.data()),
               Error);
}

}  // namespace
}  // namespace weft::data
