#include "weft/engine/internal/gradient_report.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/engine/internal/index.h"

namespace weft::engine::internal {

void GradientReport::send(const Group& group, const Facts& facts) {
  const std::size_t params = mine_.size();
  numbers_ = at::zeros({static_cast<std::int64_t>(params) + 4}, at::kDouble);
  auto* const numbers = numbers_.data_ptr<double>();
  const double digest = facts.digest;
  numbers[0] = facts.samples;
  numbers[params + 1] = 1;
  numbers[params + 2] = digest;
  numbers[params + 3] = digest * digest;
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
  // The digests are equal if (sum of digests)^2 = (number of ranks) * (sum of their squares).
  const double* const digests = numbers + used_.size() + 1;
  const auto exact = [](double number) { return static_cast<std::uint64_t>(number); };
  alike_ = alike_ && exact(digests[0]) * exact(digests[2]) == exact(digests[1]) * exact(digests[1]);
  numbers_.reset();
}

void GradientReport::clear() {
  std::fill(used_.begin(), used_.end(), false);
  all_finite_ = alike_ = true;
}

}  // namespace weft::engine::internal
