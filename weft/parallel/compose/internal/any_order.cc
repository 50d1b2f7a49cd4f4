#include "weft/parallel/compose/internal/any_order.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::parallel::internal {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 16;  // float64 numbers per chunk

template <class Fn>
void in_chunks(const std::vector<at::Tensor>& parts, const Fn& fn) {
  for (const at::Tensor& part : parts) {
    for (std::int64_t at = 0; at < part.numel(); at += kChunk)
      fn(part.narrow(0, at, std::min(kChunk, part.numel() - at)).to(at::kDouble));
  }
}

}  // namespace

GradientTree::GradientTree(std::vector<at::Tensor> parameters, int leaves)
    : parameters_(std::move(parameters)), leaves_(leaves) {}

bool GradientTree::take(int leaf) {
  const at::NoGradGuard no_grad;
  Gradients sum;
  for (const at::Tensor& parameter : parameters_) {
    // Gradients of several parameters may be views of one tensor, and are added to below.
    const at::Tensor& gradient = parameter.grad();
    const bool shares = gradient.has_storage() && gradient.storage().use_count() > 1;
    sum.push_back(shares ? gradient.clone() : gradient);
    parameter.mutable_grad() = at::Tensor();
  }
  int size = 1, number = leaf;
  for (auto other = waiting_.find({size, number ^ 1}); other != waiting_.end();
       other = waiting_.find({size, number ^ 1})) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      at::Tensor& half = other->second[i];
      sum[i] = sum[i].defined() && half.defined() ? sum[i].add_(half)
               : half.defined()                   ? half
                                                  : sum[i];
    }
    waiting_.erase(other);
    size *= 2;
    number /= 2;
  }
  if (size < leaves_) {
    waiting_.emplace(std::make_pair(size, number), std::move(sum));
    return false;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) parameters_[i].mutable_grad() = sum[i];
  return true;
}

// Converts squares to integers below 2^bits, so that their total stays below 2^62, and converts the
// remainders to integers again.
double squares_in_any_order(const Group& group, const std::vector<at::Tensor>& parts) {
  double most = 0, count = 0;
  bool finite = true;
  in_chunks(parts, [&](const at::Tensor& x) {
    const double here = x.abs().max().item<double>();
    finite = finite && std::isfinite(here);
    if (finite) most = std::max(most, here);
    count += static_cast<double>(x.numel());
  });
  at::Tensor bounds = at::tensor({most, finite ? 0.0 : 1.0}, at::kDouble),
             all = at::full({1}, count, at::kDouble);
  group.all_reduce(bounds, ReduceOp::kMax);
  group.all_reduce(all);
  most = bounds[0].item<double>();
  if (bounds[1].item<double>() > 0) return std::numeric_limits<double>::quiet_NaN();
  if (most == 0) return 0;
  const int above = std::ilogb(most) + 1, bits = 62 - std::ilogb(all.item<double>()) - 1;
  at::Tensor sums = at::zeros({2}, at::kLong);
  in_chunks(parts, [&](const at::Tensor& x) {
    const at::Tensor scaled = (x * std::ldexp(1.0, -above)).square() * std::ldexp(1.0, bits),
                     whole = scaled.floor();
    sums[0] += whole.to(at::kLong).sum();
    sums[1] += ((scaled - whole) * std::ldexp(1.0, bits)).round().to(at::kLong).sum();
  });
  group.all_reduce(sums);
  const auto* const numbers = sums.const_data_ptr<std::int64_t>();
  return std::ldexp(
      static_cast<double>(numbers[0]) + std::ldexp(static_cast<double>(numbers[1]), -bits),
      2 * above - bits);
}

}  // namespace weft::parallel::internal
