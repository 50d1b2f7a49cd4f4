// The one place where an engine gets the memory of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>

#include "weft/comm/internal/engine.h"

namespace weft::comm::internal {

// A collective on the memory of tensors. Its parts are those of schedule::Request: all_gather takes
// an input of n elements and an output of world * n. All-reduce and broadcast work in place, on the
// output or, on the root of a broadcast, on the input.
struct TensorCall {
  schedule::Collective collective;
  at::Tensor input = {}, output = {};  // undefined where this rank has none
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::chrono::milliseconds timeout{0};
  int more = 0;  // tensors that follow in the caller's call: the same number on all ranks
};

// Runs the call. The tensors may have any layout of dense tensors (Dense) and may share memory: the
// output is the same as if they did not. An input that the engine would overwrite too early is
// copied first. Throws kInvalidArgument before any transfer if input and output differ in type, if
// one is not as long as the call needs, or if the type has no such reduction; and as the engine.
void run_call(Engine& engine, const TensorCall& call);

}  // namespace weft::comm::internal
