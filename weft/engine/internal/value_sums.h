// Compares the parameters of the ranks by sums of their values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "weft/comm/group.h"
#include "weft/engine/internal/unit.h"

namespace weft::engine::internal {

class ValueSums {
 public:
  explicit ValueSums(std::size_t params);

  // What must be alike of a parameter besides its values.
  void note(std::size_t param, bool requires_grad, bool changed);
  // Its values must be alike too. Costs some passes over them.
  void add(std::size_t param, const at::Tensor& values);
  // Throws Error(kInvalidArgument) on all ranks, with the name of the first parameter that differs.
  // `tolerance`: relative to the norm of its values. Costs 56 bytes a parameter and rank.
  // Collective; all ranks add the same parameters.
  void compare(const Group& group, const std::vector<Param>& params, double tolerance) const;

 private:
  double* row(std::size_t param) const;

  at::Tensor rows_;  // of this rank
};

}  // namespace weft::engine::internal
