// bf16 and f16: each number is rounded to the nearest. The relative error is at most 2^-9 and 2^-12
// for normal numbers of the type.
#include <cmath>

#include "weft/compress/internal/codecs.h"
#include "weft/kernels/reduce.h"

namespace weft::compress::internal {
namespace {

// Number of values per strip, so that the float32 intermediate stays in the L1 cache.
constexpr std::size_t kStrip = 2048;

class CastCodec final : public Codec {
 public:
  explicit CastCodec(DType type) : type_(type) {}

  std::int64_t bytes(std::int64_t count) const override { return round_up(2 * count, 4); }
  std::optional<DType> sums() const override { return type_; }

  void encode(std::span<const float> values, const Draw&, std::vector<std::byte>& wire,
              float* residual) const override {
    std::byte* const out = append(wire, bytes(static_cast<std::int64_t>(values.size())));
    kernels::cast(out, type_, values.data(), DType::kF32, static_cast<std::int64_t>(values.size()));
    if (residual == nullptr) return;
    strips(out, values.size(), [&](std::size_t i, float decoded) {
      const float left = values[i] - decoded;
      residual[i] = std::isfinite(left) ? left : 0.0f;
    });
  }

  void add(std::span<const std::byte> wire, const Draw&, std::span<float> values) const override {
    need(wire, bytes(static_cast<std::int64_t>(values.size())));
    strips(wire.data(), values.size(), [&](std::size_t i, float decoded) { values[i] += decoded; });
  }

 private:
  template <class Take>
  void strips(const std::byte* from, std::size_t count, const Take& take) const {
    float wide[kStrip];
    for (std::size_t first = 0; first < count; first += kStrip) {
      const std::size_t n = std::min(kStrip, count - first);
      kernels::cast(wide, DType::kF32, from + 2 * first, type_, static_cast<std::int64_t>(n));
      for (std::size_t i = 0; i < n; ++i) take(first + i, wide[i]);
    }
  }

  const DType type_;
};

}  // namespace

std::unique_ptr<Codec> make_cast(DType type) { return std::make_unique<CastCodec>(type); }

}  // namespace weft::compress::internal
