// Collectives on tensors, in the forms of c10d's interface. They are called one at a time, in the
// same order on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "weft/comm/internal/engine.h"

namespace weft::comm::internal {

using Tensors = std::vector<at::Tensor>;

// `more`: as in TensorCall.
void all_reduce(Engine& engine, const at::Tensor& tensor, const c10d::ReduceOp& op,
                std::chrono::milliseconds timeout, std::size_t more = 0);
// Gathers the entries of all ranks, padded to the longest list, and sums them by coalescing.
void all_reduce_sparse(Engine& engine, const at::Tensor& tensor, std::chrono::milliseconds timeout);
// `output` is undefined on the other ranks than root.
void reduce(Engine& engine, const at::Tensor& output, const at::Tensor& input,
            const c10d::ReduceOp& op, int root, std::chrono::milliseconds timeout);
void all_gather(Engine& engine, const at::Tensor& output, const at::Tensor& input,
                std::chrono::milliseconds timeout, std::size_t more = 0);
void all_gather_list(Engine& engine, const Tensors& outputs, const at::Tensor& input,
                     std::chrono::milliseconds timeout, std::size_t more);
void reduce_scatter(Engine& engine, const at::Tensor& output, const at::Tensor& input,
                    const c10d::ReduceOp& op, std::chrono::milliseconds timeout,
                    std::size_t more = 0);
// Agrees on the call, then sends blocks of any length by messages. A wrong length is an error on
// the receiver. Blocks arrive while others are sent, so inputs that share memory with outputs are
// copied first.
void all_to_all_uneven(Engine& engine, const Tensors& outputs, const Tensors& inputs,
                       std::chrono::milliseconds timeout);

}  // namespace weft::comm::internal
