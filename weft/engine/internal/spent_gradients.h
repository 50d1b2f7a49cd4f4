// Gradients that a step has used and that the program has not dropped since. In one process, the
// next backward() would add to them. Here they may be sums over the ranks, not clipped, or weighted
// by other samples than the next ones, so they must not count again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace weft::engine::internal {

class SpentGradients {
 public:
  // The gradients of these parameters are spent. Does not keep their memory.
  void note(const std::vector<at::Tensor>& params);
  bool any() const { return !spent_.empty(); }
  // Number of the first parameter that still has its spent gradient, with the values of then; -1:
  // none.
  int first(const std::vector<at::Tensor>& params) const;
  // Drops all of these. Returns false if there is none.
  bool drop(const std::vector<at::Tensor>& params);
  void clear() { spent_.clear(); }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Spent {
    Weak gradient;
    std::int64_t version = 0;
  };
  bool is_spent(std::size_t param, const at::Tensor& gradient) const;

  std::vector<Spent> spent_;  // by parameter; empty: none
};

}  // namespace weft::engine::internal
