#include "weft/parallel/tensor/dropout.h"

#include <torch/torch.h>

#include <array>

#include "weft/base/random.h"

namespace weft::parallel {
namespace {

constexpr std::uint32_t kStream = 0x64726f70;  // "drop": no other part of weft draws from it
constexpr std::int64_t kGrain = 1 << 14;

// A mask's place in the whole tensor's: rows of `run` elements, of which this rank's is the index-th of `of`.
struct Place {
  std::int64_t run = 1, index = 0, of = 1;
  std::int64_t in_whole(std::int64_t mine) const { return (mine / run * of + index) * run + mine % run; }
};

void fill(float* mask, std::int64_t count, const Place& place, double p, std::pair<std::uint64_t, std::uint64_t> address) {
  const auto [seed, draw] = address;
  const std::array<std::uint32_t, 2> key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  const auto threshold = static_cast<std::uint32_t>(p * 0x1p32);
  const auto kept = static_cast<float>(1 / (1 - p));
  at::parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::array<std::uint32_t, 4> words{};
    std::int64_t block = -1;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = place.in_whole(i);
      if (at / 4 != block) {
        block = at / 4;
        words = philox4x32(
            {static_cast<std::uint32_t>(block), kStream, static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32)}, key);
      }
      mask[i] = words[static_cast<std::size_t>(at % 4)] >= threshold ? kept : 0.0f;
    }
  });
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, std::optional<std::int64_t> split_dim, const TensorParallel& tp) {
  WEFT_REQUIRE(p >= 0 && p < 1, "dropout: p is in [0, 1), not " + std::to_string(p));
  if (p == 0) return x;
  const auto address = tp.next_draw();
  Place place;
  if (split_dim) {
    const std::int64_t dim = *split_dim < 0 ? *split_dim + x.dim() : *split_dim;
    place = {c10::multiply_integers(x.sizes().slice(static_cast<std::size_t>(dim))), tp.rank(), tp.size()};
  }
  at::Tensor mask = at::empty(x.sizes(), at::kFloat);
  fill(mask.mutable_data_ptr<float>(), mask.numel(), place, p, address);
  return x * mask.to(x.options());
}

DropoutImpl::DropoutImpl(DropoutOptions options_, TensorParallel tp) : options(options_), tp_(std::move(tp)) {
  WEFT_REQUIRE(options.p >= 0 && options.p < 1, "Dropout: p is in [0, 1), not " + std::to_string(options.p));
}

void DropoutImpl::reset() {}

at::Tensor DropoutImpl::forward(const at::Tensor& x) {
  if (!is_training()) return x;
  return dropout(x, options.p, options.sequence == Sequence::kSplit ? std::optional<std::int64_t>(-2) : std::nullopt, tp_);
}

}  // namespace weft::parallel
