#include "weft/data/shapes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "weft/base/clones/clones.h"
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

constexpr std::size_t kPixels = kSide * kSide;

// How a shape is drawn.
struct Drawing {
  double r, cx, cy, cosine, sine, contrast, base, slope_x, slope_y;
};

Drawing draw(Random& random) {
  const auto between = [&](double low, double high) {
    return low + (high - low) * random.uniform();
  };
  Drawing one{};
  one.r = between(5, 10);
  one.cx = kSide / 2.0 + between(-4, 4);
  one.cy = kSide / 2.0 + between(-4, 4);
  const double angle = between(-0.3, 0.3);
  one.cosine = std::cos(angle);
  one.sine = std::sin(angle);
  one.contrast = between(70, 150);
  one.base = between(20, 70);
  one.slope_x = between(-1.5, 1.5);
  one.slope_y = between(-1.5, 1.5);
  return one;
}

using Values = std::array<double, kPixels>;

// The values of the pixels without noise.
template <std::int64_t kLabel>
[[gnu::always_inline]] inline void paint(const Drawing& how, Values& values) {
  for (std::int64_t row = 0; row < kSide; ++row) {
    const double dy = static_cast<double>(row) + 0.5 - how.cy;
    for (std::int32_t column = 0; column < kSide; ++column) {
      const double dx = column + 0.5 - how.cx;
      const double x = how.cosine * dx + how.sine * dy, y = how.cosine * dy - how.sine * dx;
      const double inside = std::clamp(0.5 - distance<kLabel>(x, y, how.r), 0.0, 1.0);
      values[static_cast<std::size_t>(row * kSide + column)] =
          how.base + how.slope_x * dx + how.slope_y * dy + how.contrast * inside;
    }
  }
}

// One loop a class, without a branch for it, so that it becomes one over vectors.
WEFT_CLONES void paint_label(std::int64_t label, const Drawing& how, Values& values) {
  switch (label) {
    case 0: return paint<0>(how, values);
    case 1: return paint<1>(how, values);
    case 2: return paint<2>(how, values);
    case 3: return paint<3>(how, values);
    case 4: return paint<4>(how, values);
    case 5: return paint<5>(how, values);
    case 6: return paint<6>(how, values);
    case 7: return paint<7>(how, values);
    case 8: return paint<8>(how, values);
    default: return paint<9>(how, values);
  }
}

// The sum of four bytes is close to a normal variable: mean 510, standard deviation 148.
WEFT_CLONES void add_noise(const std::uint32_t* bits, const Values& values, std::uint8_t* out) {
  std::array<std::int32_t, kPixels> sums, whole;
  for (std::size_t i = 0; i < kPixels; ++i) {
    sums[i] = static_cast<std::int32_t>((bits[i] & 255) + (bits[i] >> 8 & 255) +
                                        (bits[i] >> 16 & 255) + (bits[i] >> 24));
  }
  for (std::size_t i = 0; i < kPixels; ++i) {
    const double value = values[i] + 0.2 * (static_cast<double>(sums[i]) - 510);
    whole[i] = static_cast<std::int32_t>(std::clamp(value, 0.0, 255.0));
  }
  for (std::size_t i = 0; i < kPixels; ++i) out[i] = static_cast<std::uint8_t>(whole[i]);
}

void draw_shape(std::int64_t label, Random& random, std::uint8_t* out) {
  const Drawing how = draw(random);
  std::array<std::uint32_t, kPixels> bits;
  random.fill(bits);
  Values values;
  paint_label(label, how, values);
  add_noise(bits.data(), values, out);
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
