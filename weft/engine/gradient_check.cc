#include "weft/engine/gradient_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "weft/base/crc32c.h"
#include "weft/engine/squares.h"
#include "weft/kernels/reduce.h"

namespace weft::engine {
namespace {

bool is_finite(const at::Tensor& gradient) {
  if (gradient.is_sparse()) return is_finite(gradient._values());
  const bool flat = gradient.is_non_overlapping_and_dense() && gradient.is_cpu();
  if (flat && gradient.scalar_type() == at::kFloat)
    return kernels::is_within(gradient.const_data_ptr<float>(), gradient.numel(),
                              GradientCheck::kLargest);
  return at::isfinite(gradient).all().item<bool>();
}

// The largest number is NaN if any is.
at::Tensor finite_on_device(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  return at::linalg_vector_norm(values, std::numeric_limits<double>::infinity())
      .le(GradientCheck::kLargest);
}

double square_norm_of(const at::Tensor& gradient) {
  const at::Tensor dense = gradient.to_dense().reshape({-1});
  if (!dense.is_cpu()) return dense.to(at::kDouble).square().sum().item<double>();
  const bool wide = dense.scalar_type() == at::kFloat || dense.scalar_type() == at::kDouble;
  return squares_of((wide ? dense : dense.to(at::kFloat)).contiguous());
}

// Of the numbers, whatever their layout.
std::uint32_t checksum_of(const at::Tensor& gradient) {
  const at::Tensor flat = gradient.to_dense().contiguous().cpu();
  return crc32c(flat.const_data_ptr(), flat.nbytes());
}

}  // namespace

void GradientCheck::watch(std::vector<std::string> names, std::vector<at::Tensor> parameters) {
  names_ = std::move(names);
  parameters_ = std::move(parameters);
  seen_.assign(parameters_.size(), 0);
  squares_.assign(parameters_.size(), 0);
}

bool GradientCheck::look(int param, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  if (records_) seen_[index_of(param)] = checksum_of(gradient);
  if (measures_) squares_[index_of(param)] += square_norm_of(gradient);
  if (!gradient.is_cpu()) {
    unread_.push_back(param);
    unread_finite_.push_back(finite_on_device(gradient));
    return true;
  }
  const bool finite = is_finite(gradient);
  if (!finite && first_ < 0) first_ = param;
  return finite;
}

int GradientCheck::first() {
  if (unread_.empty()) return first_;
  const at::NoGradGuard no_grad;
  const at::Tensor finite = at::stack(unread_finite_).cpu();  // waits for the device
  const bool* const values = finite.const_data_ptr<bool>();
  for (std::size_t i = 0; i < unread_.size() && first_ < 0; ++i) {
    if (!values[i]) first_ = unread_[i];
  }
  unread_.clear();
  unread_finite_.clear();
  return first_;
}

std::vector<std::uint32_t> GradientCheck::kept() const {
  const at::NoGradGuard no_grad;
  std::vector<std::uint32_t> all;
  for (const at::Tensor& parameter : parameters_)
    all.push_back(parameter.grad().defined() ? checksum_of(parameter.grad()) : 0);
  return all;
}

void GradientCheck::clear() {
  first_ = -1;
  unread_.clear();
  unread_finite_.clear();
  std::fill(seen_.begin(), seen_.end(), 0);
  std::fill(squares_.begin(), squares_.end(), 0);
}

}  // namespace weft::engine
