// topk and threshold: the encoding has the number of values, their positions, and the values.
//
//   topk of k among n    ||x - C(x)||^2 <= (1 - k / n) ||x||^2 (Stich et al. 2018, lemma A.1)
//   threshold t          omitted values are below t; at most the largest half is sent, rounded up
//                        (more would not compress)
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "weft/base/error.h"
#include "weft/compress/internal/codecs.h"

namespace weft::compress::internal {
namespace {

constexpr int kBins = 4096;
// Shift of a magnitude's 31 bits that keeps the exponent and four bits of the mantissa.
constexpr int kBinShift = 19;

std::uint32_t magnitude(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu; }

// Returns the positions of the k largest magnitudes, ascending. Among equal ones, earlier positions
// win. NaN counts as the largest. One pass counts magnitudes by bins, a second one collects; only
// the bin at the border is sorted.
std::vector<std::uint32_t> largest(std::span<const float> values, std::int64_t k) {
  std::vector<std::uint32_t> bins(kBins, 0);
  for (float value : values) ++bins[magnitude(value) >> kBinShift];
  int border = kBins;
  std::int64_t above = 0;
  while (border > 0 && above + bins[static_cast<std::size_t>(border - 1)] <= k)
    above += bins[static_cast<std::size_t>(--border)];
  std::vector<std::uint32_t> places, candidates;
  places.reserve(static_cast<std::size_t>(k));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int bin = static_cast<int>(magnitude(values[i]) >> kBinShift);
    if (bin >= border) places.push_back(static_cast<std::uint32_t>(i));
    if (bin == border - 1) candidates.push_back(static_cast<std::uint32_t>(i));
  }
  const auto more = static_cast<std::ptrdiff_t>(k - above);
  std::nth_element(candidates.begin(), candidates.begin() + more, candidates.end(),
                   [&](std::uint32_t a, std::uint32_t b) {
                     return magnitude(values[a]) != magnitude(values[b])
                                ? magnitude(values[a]) > magnitude(values[b])
                                : a < b;
                   });
  places.insert(places.end(), candidates.begin(), candidates.begin() + more);
  std::sort(places.begin(), places.end());
  return places;
}

class SparseCodec : public Codec {
 public:
  bool sparse() const override { return true; }
  void encode(std::span<const float> values, const Draw&, std::vector<std::byte>& wire,
              float* residual) const override {
    WEFT_REQUIRE(values.size() < (std::uint64_t{1} << 32),
                 "a sparse codec supports at most 2^32 numbers at once");
    const auto places = choose(values);
    const auto count = static_cast<std::uint32_t>(places.size());
    std::byte* out = append(wire, 4 + 8 * static_cast<std::int64_t>(count));
    std::memcpy(out, &count, 4);
    if (count > 0) std::memcpy(out + 4, places.data(), 4 * places.size());
    out += 4 + 4 * places.size();
    for (std::size_t i = 0; i < places.size(); ++i) std::memcpy(out + 4 * i, &values[places[i]], 4);
    if (residual == nullptr) return;
    // A number that is not finite counts as the largest, so at least one of them is sent.
    for (std::size_t i = 0; i < values.size(); ++i)
      residual[i] = std::isfinite(values[i]) ? values[i] : 0.0f;
    for (std::uint32_t place : places) residual[place] = 0.0f;
  }

  void add(std::span<const std::byte> wire, const Draw&, std::span<float> values) const override {
    need(wire, 4);
    std::uint32_t count = 0;
    std::memcpy(&count, wire.data(), 4);
    need(wire, 4 + 8 * static_cast<std::int64_t>(count));
    const std::byte* const places = wire.data() + 4;
    const std::byte* const numbers = places + 4 * static_cast<std::size_t>(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t place = 0;
      float number = 0;
      std::memcpy(&place, places + 4 * i, 4);
      std::memcpy(&number, numbers + 4 * i, 4);
      if (place >= values.size())
        throw Error(Errc::kCorrupt, "a peer's encoded gradient has a number beyond its end");
      values[place] += number;
    }
  }

 protected:
  virtual std::vector<std::uint32_t> choose(std::span<const float> values) const = 0;
};

class TopK final : public SparseCodec {
 public:
  explicit TopK(double share) : share_(share) {}
  std::int64_t bytes(std::int64_t count) const override { return 4 + 8 * kept(count); }

 private:
  std::int64_t kept(std::int64_t count) const {
    return static_cast<std::int64_t>(std::ceil(share_ * static_cast<double>(count)));
  }
  std::vector<std::uint32_t> choose(std::span<const float> values) const override {
    return largest(values, kept(static_cast<std::int64_t>(values.size())));
  }

  const double share_;
};

class Threshold final : public SparseCodec {
 public:
  explicit Threshold(float bound) : bound_(magnitude(bound)) {}
  std::int64_t bytes(std::int64_t count) const override { return 4 + 8 * ((count + 1) / 2); }
  bool fixed() const override { return false; }

 private:
  std::vector<std::uint32_t> choose(std::span<const float> values) const override {
    std::int64_t count = 0;
    for (float value : values) count += magnitude(value) >= bound_ ? 1 : 0;
    return largest(values, std::min(count, static_cast<std::int64_t>((values.size() + 1) / 2)));
  }

  const std::uint32_t bound_;
};

}  // namespace

std::unique_ptr<Codec> make_top_k(double share) { return std::make_unique<TopK>(share); }
std::unique_ptr<Codec> make_threshold(float magnitude) {
  return std::make_unique<Threshold>(magnitude);
}

}  // namespace weft::compress::internal
