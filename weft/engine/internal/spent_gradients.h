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
  // The gradients of these parameters are spent. Does not keep their memory. With `any_values`,
  // gradients that the program changes or puts in their place are spent, too, unless they are zero.
  void note(const std::vector<at::Tensor>& params, bool any_values = false);
  // Called before backward() adds to gradients. Drops the spent ones, so that they do not count
  // again. Returns a parameter to which it must not add, since one process would add to a spent
  // gradient; -1: none. If the program may drop the new gradients too, take_added() tells later.
  int begin_adding(const std::vector<at::Tensor>& params, bool may_be_dropped);
  // A parameter that has a gradient in place of a spent one; -1: none. The next call returns -1.
  int take_added(const std::vector<at::Tensor>& params);
  void forget_added() { added_to_ = -1; }
  // Drops the spent ones, before gradients are taken from grad().
  void drop(const std::vector<at::Tensor>& params) { found_ = drop_all(params) || found_; }
  // drop() has found some in this step.
  bool found() const { return found_; }
  void end_step() { found_ = false; }
  // The program has dropped all gradients.
  void clear() {
    spent_.clear();
    forget_added();
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Spent {
    Weak gradient;
    std::int64_t version = 0;
  };
  bool is_spent(std::size_t param, const at::Tensor& gradient) const;
  // The first parameter that still has its spent gradient; -1: none.
  int first(const std::vector<at::Tensor>& params) const;
  // Returns false if there is none.
  bool drop_all(const std::vector<at::Tensor>& params);

  std::vector<Spent> spent_;  // by parameter; empty: none
  bool any_values_ = false;   // of the last note()
  int added_to_ = -1;  // a parameter whose spent gradient made way for one of no_sync(); -1: none
  bool found_ = false;
};

}  // namespace weft::engine::internal
