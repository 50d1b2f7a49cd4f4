#include "weft/train/internal/measured.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace weft::train::internal {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<std::vector<double>> gather_numbers(const Group& world,
                                                const std::vector<double>& mine) {
  const auto count = static_cast<std::int64_t>(mine.size());
  at::Tensor all = at::empty({world.size() * count}, at::kDouble);
  world.all_gather(all, at::tensor(mine, at::kDouble));
  std::vector<std::vector<double>> rows;
  const double* from = all.const_data_ptr<double>();
  for (int rank = 0; rank < world.size(); ++rank, from += count)
    rows.emplace_back(from, from + count);
  return rows;
}

std::vector<double> largest_numbers(const Group& world, const std::vector<double>& mine) {
  at::Tensor all = at::tensor(mine, at::kDouble);
  world.all_reduce(all, ReduceOp::kMax);
  const double* const values = all.const_data_ptr<double>();
  return {values, values + mine.size()};
}

}  // namespace weft::train::internal
