#include "weft/engine/internal/gradient_report.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/engine/internal/index.h"
#include "weft/engine/internal/module_watch.h"

namespace weft::engine::internal {
namespace {

void put_powers(double* into, double number) {
  into[0] = number > 0 ? 1 : 0;
  into[1] = number;
  into[2] = number * number;
}

// Of put_powers() of numbers below ModuleWatch::kDigests: they are equal if
// (their sum)^2 = (their count) * (sum of their squares).
bool sums_of_equals(const double* sums) {
  const auto exact = [](double number) { return static_cast<std::uint64_t>(number); };
  return exact(sums[0]) * exact(sums[2]) == exact(sums[1]) * exact(sums[1]);
}

}  // namespace

void GradientReport::send(const Group& group, const Facts& facts) {
  const std::size_t params = mine_.size();
  numbers_ = at::zeros({static_cast<std::int64_t>(params) + 7}, at::kDouble);
  auto* const numbers = numbers_.data_ptr<double>();
  numbers[0] = facts.samples;
  put_powers(numbers + params + 1, facts.digest);
  const std::uint64_t company =
      facts.company == 0 ? 0 : 1 + facts.company % (ModuleWatch::kDigests - 1);
  put_powers(numbers + params + 4, static_cast<double>(company));
  for (std::size_t param = 0; param < params; ++param) numbers[param + 1] = mine_[param] ? 1 : 0;
  if (facts.first_not_finite >= 0) numbers[index(facts.first_not_finite) + 1] += kNotFinite;
  work_ = group.all_reduce_async(numbers_);
  std::fill(mine_.begin(), mine_.end(), false);
}

double GradientReport::await(const std::optional<Group>& replicas) {
  work_->wait();
  if (replicas) replicas->all_reduce(numbers_);
  return numbers_.const_data_ptr<double>()[0];
}

void GradientReport::take() {
  const double* const numbers = numbers_.const_data_ptr<double>();
  for (std::size_t param = 0; param < used_.size(); ++param) {
    used_[param] = used_[param] || numbers[param + 1] > 0;
    all_finite_ = all_finite_ && numbers[param + 1] < kNotFinite;
  }
  alike_ = alike_ && sums_of_equals(numbers + used_.size() + 1);
  apart_ = apart_ || !sums_of_equals(numbers + used_.size() + 4);
  numbers_.reset();
}

void GradientReport::clear() {
  std::fill(used_.begin(), used_.end(), false);
  all_finite_ = alike_ = true;
  apart_ = false;
}

}  // namespace weft::engine::internal
