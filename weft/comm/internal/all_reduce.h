// The parts of Group::all_reduce that PreparedAllReduce uses too.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/base/dtype.h"
#include "weft/net/memory/direct.h"

namespace weft::comm::internal {

c10d::ReduceOp to_c10d(ReduceOp op);

// Throws kInvalidArgument if elements of the tensor share memory, so that it cannot hold a result.
void require_apart(const char* operation, const at::Tensor& tensor);

// The arguments of a collective in place on the tensor's own memory. `shape` points into the
// tensor. None if the collective needs a copy of the tensor, or is not weft's (plain_type()).
std::optional<net::DirectArgs> plain_args(const at::Tensor& tensor);

// The call of any backend. `timeout`: of each wait for a peer; 0: the group's.
c10::intrusive_ptr<c10d::Work> all_reduce_by(c10d::Backend& backend, const at::Tensor& tensor,
                                             ReduceOp op, bool async,
                                             std::chrono::milliseconds timeout);

}  // namespace weft::comm::internal
