// A micro-batch of made-up rows, on a replica that has fewer samples than micro-batches. It must
// not count.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include <vector>

#include "weft/engine/block.h"
#include "weft/parallel/internal/evaluation_mode.h"

namespace weft::parallel::internal {

// While this lives, every gradient that reaches a parameter is replaced by zeros. The gradient of
// the loss is zero too, but a block may multiply it by a NaN of the made-up rows. In forward,
// blocks with running statistics are in evaluation mode. Backward keeps the modes, since the engine
// compares them between ranks there.
class MadeUp {
 public:
  MadeUp(const std::vector<engine::Block>& blocks, bool forward);
  ~MadeUp();
  MadeUp(const MadeUp&) = delete;
  MadeUp& operator=(const MadeUp&) = delete;

 private:
  EvaluationMode mode_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace weft::parallel::internal
