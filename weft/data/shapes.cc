#include "weft/data/shapes.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::data {
namespace {

// The random streams (base/random.h) of the parts.
constexpr std::uint32_t kTrainStream = 0x73687030, kTestStream = 0x73687031;
constexpr std::int64_t kSide = 28;
constexpr std::int64_t kClasses = 10;
constexpr double kStroke = 1.2;  // Half the width of a line, in pixels.

// Distance to the border of a centered square with half side r; negative inside.
double square(double x, double y, double r) { return std::max(std::abs(x), std::abs(y)) - r; }

double triangle(double x, double y, double r) {
  return std::max(y - 0.6 * r, 0.866 * std::abs(x) - 0.5 * y - 0.5 * r);
}

// Signed distance in pixels, negative inside, to the shape of a class with "radius" r.
double distance(std::int64_t label, double x, double y, double r) {
  const double radius = std::hypot(x, y);
  const double frame = square(x, y, r);
  switch (label) {
    case 0: return std::abs(radius - r) - kStroke;
    case 1: return radius - r;
    case 2: return std::abs(square(x, y, 0.9 * r)) - kStroke;
    case 3: return square(x, y, 0.9 * r);
    case 4: return triangle(x, y, r);
    case 5: return std::max(frame, std::min(std::abs(x), std::abs(y)) - kStroke);
    case 6: return std::max(frame, std::min(std::abs(x + y), std::abs(x - y)) * 0.7071 - kStroke);
    case 7: return std::max(frame, std::abs(std::remainder(y, r)) - 0.25 * r);
    case 8: return std::max(frame, std::abs(std::remainder(x, r)) - 0.25 * r);
    default: return std::min(std::abs(radius - r) - kStroke, radius - 0.35 * r);
  }
}

void draw_shape(std::int64_t label, Random& random, std::uint8_t* out) {
  const auto between = [&](double low, double high) {
    return low + (high - low) * random.uniform();
  };
  const double r = between(5, 10);
  const double cx = kSide / 2.0 + between(-4, 4), cy = kSide / 2.0 + between(-4, 4);
  const double angle = between(-0.3, 0.3), cosine = std::cos(angle), sine = std::sin(angle);
  const double contrast = between(70, 150), base = between(20, 70);
  const double slope_x = between(-1.5, 1.5), slope_y = between(-1.5, 1.5);
  for (std::int64_t row = 0; row < kSide; ++row) {
    for (std::int64_t column = 0; column < kSide; ++column) {
      const double dx = column + 0.5 - cx, dy = row + 0.5 - cy;
      const double inside = std::clamp(
          0.5 - distance(label, cosine * dx + sine * dy, cosine * dy - sine * dx, r), 0.0, 1.0);
      // The sum of four bytes is close to a normal variable: mean 510, standard deviation 148.
      const std::uint32_t bits = random.next_u32();
      const double noise = static_cast<double>((bits & 255) + (bits >> 8 & 255) +
                                               (bits >> 16 & 255) + (bits >> 24)) -
                           510;
      const double value = base + slope_x * dx + slope_y * dy + contrast * inside + 0.2 * noise;
      *out++ = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
    }
  }
}

}  // namespace

ImageSet make_shapes(ShapesOptions options, Part part) {
  const std::int64_t size = part == Part::kTrain ? options.train : options.test;
  WEFT_REQUIRE(size > 0, "make_shapes: a part must have at least one sample");
  ImageSet set{.channels = 1, .height = kSide, .width = kSide, .num_classes = kClasses};
  set.labels.resize(static_cast<std::size_t>(size));
  set.pixels.resize(static_cast<std::size_t>(size * set.image_bytes()));
  for (std::int64_t i = 0; i < size; ++i) {
    Random random(options.seed, part == Part::kTrain ? kTrainStream : kTestStream,
                  static_cast<std::uint64_t>(i));
    set.labels[i] = static_cast<std::uint8_t>(i % kClasses);
    draw_shape(i % kClasses, random, set.pixels.data() + i * set.image_bytes());
  }
  return set;
}

}  // namespace weft::data
