// Notices that a program has changed gradients between backward() and step(). Ranks may have read
// them by then, so the change would not count.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "weft/engine/internal/change_marks.h"
#include "weft/engine/internal/param_list.h"

namespace weft::engine::internal {

class GradientWatch {
 public:
  // `params` outlives it.
  explicit GradientWatch(const ParamList& params) : params_(params), noted_(params.trained()) {}

  // backward() has made this gradient. Keeps it alive, since peers may read it.
  void note(int param);
  // Throws Error(kInvalidArgument) if the program has changed, replaced or dropped one of them. The
  // first call compares some values too, since libtorch's clip_grad_norm_() writes through data().
  // Later ones do not, since sums may have taken the gradients' place.
  void check();
  void forget();

 private:
  struct Noted {
    at::Tensor gradient;
    std::int64_t version = 0;
    LineSums lines{};
  };

  const ParamList& params_;
  std::vector<Noted> noted_;  // by trained parameter
  bool checked_ = false;
};

}  // namespace weft::engine::internal
