#include "weft/parallel/tensor/dropout.h"

#include <torch/types.h>

#include <algorithm>
#include <span>

#include "weft/base/random.h"

namespace weft::parallel {
namespace {

constexpr std::int64_t kGrain = 1 << 14;

// Position of a tensor in the whole tensor: [outer, count, run] of [outer, whole, run]. It has the
// entries at `positions`, or all from `first` on.
struct Place {
  std::int64_t count = 1, whole = 1, run = 1, first = 0;
  at::Tensor positions = {};
};

at::Tensor dropped(const at::Tensor& x, double p, const Place& place, const TensorParallel& tp) {
  const auto [seed, draw] = tp.next_draw();
  const DropoutAddress address{seed, draw};
  at::Tensor mask = at::empty(x.sizes(), at::kFloat);
  auto* const to = mask.mutable_data_ptr<float>();
  const std::int64_t* const positions =
      place.positions.defined() ? place.positions.const_data_ptr<std::int64_t>() : nullptr;
  at::parallel_for(0, mask.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end;) {
      const std::int64_t row = i / place.run, column = i % place.run, entry = row % place.count;
      const std::int64_t count = std::min(place.run - column, end - i);
      const std::int64_t position = positions != nullptr ? positions[entry] : place.first + entry;
      const std::int64_t number = (row / place.count * place.whole + position) * place.run + column;
      dropout_factors({to + i, static_cast<std::size_t>(count)}, static_cast<std::uint64_t>(number),
                      p, address);
      i += count;
    }
  });
  return x * mask.to(x.options());
}

void require_probability(double p) {
  WEFT_REQUIRE(p >= 0 && p < 1, "dropout: p must be in [0, 1), not " + std::to_string(p));
}

std::int64_t run_behind(const at::Tensor& x, std::int64_t dim) {
  return c10::multiply_integers(x.sizes().slice(static_cast<std::size_t>(dim) + 1));
}

}  // namespace

at::Tensor dropout(const at::Tensor& x, double p, std::optional<std::int64_t> split_dim,
                   const TensorParallel& tp) {
  require_probability(p);
  if (p == 0) return x;
  if (!split_dim) return dropped(x, p, {.run = std::max<std::int64_t>(1, x.numel())}, tp);
  const std::int64_t dim = *split_dim < 0 ? *split_dim + x.dim() : *split_dim;
  return dropped(
      x, p, {1, tp.size(), std::max<std::int64_t>(1, x.size(dim) * run_behind(x, dim)), tp.rank()},
      tp);
}

at::Tensor dropout_of_part(const at::Tensor& x, double p, const DropoutPart& part,
                           const TensorParallel& tp) {
  require_probability(p);
  const std::int64_t dim = part.dim < 0 ? part.dim + x.dim() : part.dim;
  WEFT_REQUIRE(part.positions.scalar_type() == at::kLong && part.positions.numel() == x.size(dim),
               "dropout: positions must be int64, one for each of the " +
                   std::to_string(x.size(dim)) + " entries along the dimension");
  if (p == 0) return x;
  return dropped(x, p,
                 {x.size(dim), part.whole, run_behind(x, dim), 0, part.positions.contiguous()}, tp);
}

DropoutImpl::DropoutImpl(DropoutOptions options_, TensorParallel tp, ContextParallel cp)
    : options(options_), tp_(std::move(tp)), cp_(std::move(cp)) {
  WEFT_REQUIRE(options.p >= 0 && options.p < 1,
               "Dropout: p must be in [0, 1), not " + std::to_string(options.p));
}

void DropoutImpl::reset() {}

at::Tensor DropoutImpl::forward(const at::Tensor& x) {
  if (!is_training() || options.p == 0) return x;
  const bool split = options.sequence == Sequence::kSplit;
  if (cp_.size() == 1)
    return dropout(x, options.p, split ? std::optional<std::int64_t>(-2) : std::nullopt, tp_);
  const std::int64_t here = x.size(-2);
  const SequenceLayout layout = cp_.layout_of_part(split ? here * tp_.size() : here);
  const at::Tensor positions = layout.positions(cp_.rank());
  return dropout_of_part(
      x, options.p,
      {-2, layout.whole, split ? positions.narrow(0, here * tp_.rank(), here) : positions}, tp_);
}

}  // namespace weft::parallel
