#include "weft/data/shapes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

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

// Distance to the nearest of the lines x = 0, ±r, ±2 r …
double to_line(double x, double r) { return std::abs(std::fma(-std::nearbyint(x / r), r, x)); }

double radius(double x, double y) { return std::sqrt(x * x + y * y); }

// Signed distance in pixels, negative inside, to the shape of a class with "radius" r.
template <std::int64_t kLabel>
double distance(double x, double y, double r) {
  if constexpr (kLabel == 0) return std::abs(radius(x, y) - r) - kStroke;
  if constexpr (kLabel == 1) return radius(x, y) - r;
  if constexpr (kLabel == 2) return std::abs(square(x, y, 0.9 * r)) - kStroke;
  if constexpr (kLabel == 3) return square(x, y, 0.9 * r);
  if constexpr (kLabel == 4) return triangle(x, y, r);
  if constexpr (kLabel == 9)
    return std::min(std::abs(radius(x, y) - r) - kStroke, radius(x, y) - 0.35 * r);
  double inner = 0;  // of the lines in the square frame
  if constexpr (kLabel == 5) inner = std::min(std::abs(x), std::abs(y)) - kStroke;
  if constexpr (kLabel == 6) inner = std::min(std::abs(x + y), std::abs(x - y)) * 0.7071 - kStroke;
  if constexpr (kLabel == 7) inner = to_line(y, r) - 0.25 * r;
  if constexpr (kLabel == 8) inner = to_line(x, r) - 0.25 * r;
  return std::max(square(x, y, r), inner);
}

template <std::int64_t kLabel>
void draw_shape(Random& random, std::uint8_t* out) {
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
          0.5 - distance<kLabel>(cosine * dx + sine * dy, cosine * dy - sine * dx, r), 0.0, 1.0);
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

// One function a class: the loop over the pixels has no branch for it.
template <std::int64_t... kLabel>
constexpr auto painters(std::integer_sequence<std::int64_t, kLabel...>) {
  return std::array{&draw_shape<kLabel>...};
}
constexpr auto kPainters = painters(std::make_integer_sequence<std::int64_t, kClasses>());

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
    kPainters[static_cast<std::size_t>(i % kClasses)](random,
                                                      set.pixels.data() + i * set.image_bytes());
  }
  return set;
}

}  // namespace weft::data
