// randomk: of each run of s = 1 / share numbers one, drawn alike on all ranks, so that places need not be sent and encodings can be summed.
//
// Each number is sent with probability 1 / s. Unscaled: E ||x - C(x)||^2 = (1 - 1 / s) ||x||^2 (Stich et al. 2018, lemma A.1, with k / n =
// 1 / s). Scaled by s: E C(x) = x.
#include <cmath>
#include <cstring>

#include "weft/base/random.h"
#include "weft/compress/internal/codecs.h"

namespace weft::compress::internal {
namespace {

class RandomK final : public Codec {
 public:
  RandomK(double share, bool scaled)
      : run_(static_cast<std::int64_t>(std::llround(1.0 / share))), factor_(scaled ? static_cast<float>(run_) : 1.0f) {}

  std::int64_t bytes(std::int64_t count) const override { return 4 * ((count + run_ - 1) / run_); }
  std::optional<DType> sums() const override { return DType::kF32; }
  bool sparse() const override { return true; }

  void encode(std::span<const float> values, const Draw& draw, std::vector<std::byte>& wire, float* residual) const override {
    std::byte* const out = append(wire, bytes(static_cast<std::int64_t>(values.size())));
    if (residual != nullptr && residual != values.data()) std::memcpy(residual, values.data(), values.size_bytes());
    drawn(draw, values.size(), [&](std::size_t run, std::size_t place) {
      const float value = place < values.size() ? values[place] : 0.0f;
      std::memcpy(out + 4 * run, &value, 4);
      if (residual != nullptr && place < values.size()) residual[place] = 0.0f;
    });
  }

  void add(std::span<const std::byte> wire, const Draw& draw, std::span<float> values) const override {
    need(wire, bytes(static_cast<std::int64_t>(values.size())));
    drawn(draw, values.size(), [&](std::size_t run, std::size_t place) {
      float value = 0;
      std::memcpy(&value, wire.data() + 4 * run, 4);
      if (place < values.size()) values[place] += factor_ * value;
    });
  }

 private:
  // take(run, place); the last run's place may lie beyond the end, so that every number is as likely as any other.
  template <class Take>
  void drawn(const Draw& draw, std::size_t count, const Take& take) const {
    Random random(draw.seed, draw.unit, static_cast<std::uint64_t>(draw.step));
    const auto run_length = static_cast<std::size_t>(run_);
    for (std::size_t first = 0, run = 0; first < count; first += run_length, ++run) {
      take(run, first + static_cast<std::size_t>(random.below(run_length)));
    }
  }

  const std::int64_t run_;
  const float factor_;
};

}  // namespace

std::unique_ptr<Codec> make_random_k(double share, bool scaled) { return std::make_unique<RandomK>(share, scaled); }

}  // namespace weft::compress::internal
