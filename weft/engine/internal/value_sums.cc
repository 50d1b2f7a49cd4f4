#include "weft/engine/internal/value_sums.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "weft/base/error.h"

namespace weft::engine::internal {
namespace {

// Sums of a tensor's quarters, a sum with other factors for neighbors, which sees values that have
// changed places, and its norm.
constexpr std::int64_t kQuarters = 4, kNorm = kQuarters + 1;
// What is noted of a parameter, and these sums.
constexpr std::int64_t kRow = kNorm + 2;

void summarize(const at::Tensor& tensor, double* into) {
  const at::Tensor flat = tensor.detach().reshape({-1}).to(at::kCPU, at::kDouble);
  for (std::int64_t i = 0; i < kQuarters; ++i) {
    const std::int64_t begin = flat.numel() * i / kQuarters,
                       end = flat.numel() * (i + 1) / kQuarters;
    into[i] = flat.narrow(0, begin, end - begin).sum().item<double>();
  }
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    const std::uint32_t factor = static_cast<std::uint32_t>(i) * 2654435769U;
    into[kQuarters] += flat.const_data_ptr<double>()[i] * factor * 0x1p-32;
  }
  into[kNorm] = flat.norm().item<double>();
}

bool alike(const double* a, const double* b, double tolerance) {
  const double most = tolerance * std::max(std::abs(a[kNorm]), std::abs(b[kNorm]));
  for (std::int64_t i = 0; i <= kNorm; ++i) {
    const bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (!same && !(std::abs(a[i] - b[i]) <= most)) return false;
  }
  return true;
}

}  // namespace

ValueSums::ValueSums(std::size_t params)
    : rows_(at::zeros({1, static_cast<std::int64_t>(params), kRow}, at::kDouble)) {}

double* ValueSums::row(std::size_t param) const {
  return rows_.data_ptr<double>() + static_cast<std::int64_t>(param) * kRow;
}

void ValueSums::note(std::size_t param, bool requires_grad, bool changed) {
  row(param)[0] = (requires_grad ? 1 : 0) + (changed ? 2 : 0);
}

void ValueSums::add(std::size_t param, const at::Tensor& values) {
  summarize(values, row(param) + 1);
}

void ValueSums::compare(const Group& group, const std::vector<Param>& params,
                        double tolerance) const {
  const std::int64_t count = rows_.size(1);
  at::Tensor all = at::zeros({group.size(), count, kRow}, at::kDouble);
  group.all_gather(all, rows_);
  const auto* const rows = all.const_data_ptr<double>();
  for (std::int64_t i = kRow * count; i < kRow * count * group.size(); i += kRow) {
    const double *const first = rows + i % (kRow * count), *const other = rows + i;
    if (first[0] == other[0] && alike(first + 1, other + 1, tolerance)) continue;
    const std::string name = params[static_cast<std::size_t>(i / kRow % count)].name,
                      ranks = "rank 0 and rank " + std::to_string(i / (kRow * count));
    const bool frozen = std::fmod(first[0], 2) != std::fmod(other[0], 2);
    throw Error(Errc::kInvalidArgument,
                (frozen ? "requires_grad of '" + name + "' differs between " + ranks
                        : "the values of '" + name + "' differ between " + ranks) +
                    "; change the module, and call step() of its optimizer, alike on all ranks, or "
                    "change it before it is made parallel",
                {"step", group.rank(), static_cast<int>(i / (kRow * count))});
  }
}

}  // namespace weft::engine::internal
