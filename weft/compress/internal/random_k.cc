// randomk sends one of each run of s numbers, the same on all ranks, so that positions need not be
// sent and encodings can be summed. Each run starts at a random position and advances cyclically:
// any s consecutive steps send each number exactly once. With a new draw in each step (Stich et al.
// 2018), a number would wait for s steps on average and ln(n) s in the worst case, instead of (s -
// 1) / 2 and s - 1.
//
// Each number is sent with probability 1 / s. Unscaled: E ||x - C(x)||^2 = (1 - 1 / s) ||x||^2
// (Stich et al. 2018, lemma A.1, with k / n = 1 / s). Scaled by s: E C(x) = x.
//
// Small tensors are sent more often than large ones. The optimal probability of a number is
// proportional to its magnitude (Wangni et al. 2018, "Gradient sparsification for
// communication-efficient distributed optimization", section 3). Gradients of a net's tensors have
// norms of similar size, so the magnitude of a number is proportional to 1 / sqrt(n). So s is
// proportional to sqrt(n), and as small as the share of all numbers allows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "weft/base/random.h"
#include "weft/compress/internal/codecs.h"

namespace weft::compress::internal {
namespace {

struct Tensor {
  std::int64_t count;
  std::int64_t run;  // length of a run; one number of each run is sent
};

std::int64_t runs_of(std::int64_t count, std::int64_t run) { return (count + run - 1) / run; }

std::int64_t sent(const std::vector<Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const Tensor& tensor : tensors) sum += runs_of(tensor.count, tensor.run);
  return sum;
}

// Finds the shortest runs, as sqrt(count) times a common factor, that send at most the share of all
// numbers, or one number of each tensor.
void set_runs(double share, std::vector<Tensor>& tensors) {
  double all = 0, longest = 1;
  for (const Tensor& tensor : tensors) {
    all += static_cast<double>(tensor.count);
    longest = std::max(longest, std::sqrt(static_cast<double>(tensor.count)));
  }
  const auto most = static_cast<std::int64_t>(std::ceil(share * all));
  const auto set = [&](double factor) {
    for (Tensor& tensor : tensors) {
      const double run = std::ceil(factor * std::sqrt(static_cast<double>(tensor.count)) - 1e-9);
      tensor.run =
          std::max<std::int64_t>(1, std::min(tensor.count, static_cast<std::int64_t>(run)));
    }
  };
  double low = 0, high = longest;  // with the factor `high`, one number of each tensor is sent
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    set(middle);
    (sent(tensors) <= most ? high : low) = middle;
  }
  set(high);
}

std::vector<Tensor> with_runs(double share, const std::vector<std::int64_t>& counts) {
  std::vector<Tensor> tensors;
  for (std::int64_t count : counts) tensors.push_back({count, 1});
  set_runs(share, tensors);
  return tensors;
}

class RandomK final : public Codec {
 public:
  RandomK(double share, bool scaled, const std::vector<std::int64_t>& tensors)
      : share_(share), scaled_(scaled), tensors_(with_runs(share, tensors)) {}

  std::int64_t bytes(std::int64_t count) const override { return 4 * sent(tensors_of(count)); }
  std::optional<DType> sums() const override { return DType::kF32; }
  bool sparse() const override { return true; }

  void encode(std::span<const float> values, const Draw& draw, std::vector<std::byte>& wire,
              float* residual) const override {
    std::byte* out = append(wire, bytes(static_cast<std::int64_t>(values.size())));
    // The residual does not keep a number that is not finite until its turn. So the first number
    // that is sent shows it at once.
    float not_finite = 0;  // 0: all numbers are finite
    for (std::size_t i = 0; residual != nullptr && i < values.size(); ++i) {
      if (!std::isfinite(values[i])) not_finite = values[i];
      residual[i] = std::isfinite(values[i]) ? values[i] : 0.0f;
    }
    const float* const numbers = residual != nullptr ? residual : values.data();
    drawn(draw, values.size(), [&](std::optional<std::size_t> place, std::int64_t) {
      float value = place ? numbers[*place] : 0.0f;
      if (place && not_finite != 0) value = std::exchange(not_finite, 0.0f);
      std::memcpy(out, &value, 4);
      out += 4;
      if (residual != nullptr && place) residual[*place] = 0.0f;
    });
  }

  void add(std::span<const std::byte> wire, const Draw& draw,
           std::span<float> values) const override {
    need(wire, bytes(static_cast<std::int64_t>(values.size())));
    const std::byte* in = wire.data();
    drawn(draw, values.size(), [&](std::optional<std::size_t> place, std::int64_t run) {
      float value = 0;
      std::memcpy(&value, in, 4);
      in += 4;
      if (place) values[*place] += (scaled_ ? static_cast<float>(run) : 1.0f) * value;
    });
  }

 private:
  std::vector<Tensor> tensors_of(std::int64_t count) const {
    return tensors_.empty() ? with_runs(share_, {count}) : tensors_;
  }

  // Calls take(position, run). The position in a last run may be beyond the end, so that all
  // numbers have the same probability.
  template <class Take>
  void drawn(const Draw& draw, std::size_t count, const Take& take) const {
    Random random(draw.seed, draw.unit);
    std::size_t first = 0;
    for (const Tensor& tensor : tensors_of(static_cast<std::int64_t>(count))) {
      const auto run = static_cast<std::size_t>(tensor.run);
      const auto turn = static_cast<std::size_t>(draw.step) % run;
      const std::size_t end = first + static_cast<std::size_t>(tensor.count);
      for (; first < end; first += run) {
        const std::size_t place =
            first + (static_cast<std::size_t>(random.below(run)) + turn) % run;
        take(place < end ? std::optional(place) : std::nullopt, tensor.run);
      }
      first = end;
    }
  }

  const double share_;
  const bool scaled_;
  const std::vector<Tensor> tensors_;  // empty: one tensor
};

}  // namespace

std::unique_ptr<Codec> make_random_k(double share, bool scaled,
                                     const std::vector<std::int64_t>& tensors) {
  return std::make_unique<RandomK>(share, scaled, tensors);
}

}  // namespace weft::compress::internal
