// Publishes this rank's gradients and buffers in the ledger, one unit of parameters after the
// other.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "weft/engine/internal/in_place.h"
#include "weft/engine/internal/transport.h"

namespace weft::engine::internal {

class UnitPublisher {
 public:
  // All outlive it. `plan` may change between two steps. The ledger has a unit more than the plan,
  // with the number of parameters as its index, and entries for the buffers after those of the
  // parameters.
  UnitPublisher(Ledger& ledger, const TransportContext& context, const BucketAssignment& plan);

  // Begins a step.
  void begin();
  // The gradient of `param` is in its grad(). Returns true if it was the last one of its unit,
  // which peers can see now.
  bool ready(int param);
  // Publishes units that backward() did not complete: parameters that were not used, or whose
  // gradients were accumulated earlier. Then the buffers.
  void publish_rest();
  // Copies rank 0's buffers, on the other ranks. Adds the seconds of the wait to `waited`.
  void take_buffers(double& waited);
  // As ShownGradients::end().
  void end(bool results, const std::vector<bool>& used);

  // The parameters as they became ready in this step, or in the last one.
  const std::vector<int>& order() const { return order_; }
  // The gradient that peers see.
  const at::Tensor& gradient(int param) const { return gradients_.of(param); }

 private:
  void show_unready(int param);
  // The unit of the ledger that all ranks publish last.
  int last_unit() const { return static_cast<int>(context_.params.size()); }

  Ledger& ledger_;
  const TransportContext& context_;
  const BucketAssignment& assignment_;
  ShownGradients gradients_;
  ShownBuffers buffers_;
  std::vector<bool> ready_;
  std::vector<int> unready_;  // by unit: number of parameters that are not ready
  std::vector<int> order_;
};

}  // namespace weft::engine::internal
