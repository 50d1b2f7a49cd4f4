#include "weft/data/image_set.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/error.h"
#include "weft/data/internal/idx.h"
#include "weft/data/shapes.h"

namespace weft::data {

ImageSet load_images(const SetOptions& options, Part part) {
  if (options.name == "fashion-mnist") return load_fashion_mnist(options.dir, part);
  if (options.name == "shapes") return make_shapes({.seed = options.seed}, part);
  throw Error(Errc::kBadConfig,
              "data.name: unknown data set \"" + options.name + "\"; use fashion-mnist or shapes");
}

void check_image_files(const SetOptions& options) {
  if (options.name == "fashion-mnist") check_fashion_mnist(options.dir);
}

ChannelStats channel_stats(const ImageSet& set) {
  const std::int64_t plane = set.height * set.width;
  WEFT_REQUIRE(set.size() > 0 && plane > 0, "channel_stats: the data set is empty");
  ChannelStats stats;
  for (std::int64_t c = 0; c < set.channels; ++c) {
    // With a histogram the sums are exact for any size.
    std::array<std::int64_t, 256> count{};
    for (std::int64_t i = 0; i < set.size(); ++i) {
      const std::uint8_t* pixel = set.pixels.data() + i * set.image_bytes() + c * plane;
      for (std::int64_t k = 0; k < plane; ++k) ++count[pixel[k]];
    }
    double sum = 0, squares = 0;
    for (int value = 0; value < 256; ++value) {
      sum += static_cast<double>(count[value]) * value;
      squares += static_cast<double>(count[value]) * value * value;
    }
    const double n = static_cast<double>(set.size() * plane);
    const double mean = sum / n;
    stats.mean.push_back(static_cast<float>(mean / 255));
    // The difference of two rounded numbers can be below zero for a channel of one value.
    const double variance = *std::max_element(count.begin(), count.end()) == set.size() * plane
                                ? 0
                                : std::max(0., squares / n - mean * mean);
    stats.std.push_back(static_cast<float>(std::sqrt(variance) / 255));
  }
  return stats;
}

}  // namespace weft::data
