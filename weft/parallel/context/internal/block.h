// Attention of some queries to some keys on one rank, by libtorch's kernel, which gives the
// logarithm of softmax's sums beside the result.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "weft/parallel/context/attention.h"

namespace weft::parallel::internal {

// float64 for that, else float32.
at::ScalarType sum_type(const at::Tensor& x);

// Dropout of a block's weights, and where its queries and keys are in the whole: int64 [n], [m].
struct Dropped {
  AttentionDropout how;
  std::int64_t whole = 0;
  at::Tensor queries, keys;
};

// One block's operands. q [batch, heads, n, width], k and v [batch, kv_heads, m, width], with any
// strides but that of the last dimension.
struct Block {
  at::Tensor q, k, v;
  at::Tensor q_documents, k_documents;  // [batch, n], [batch, m], or undefined
  bool causal = false;  // n = m, and query i sees keys 0 … i; else all of its document
  double scale = 1;
  Dropped dropped = {};  // where its p is above 0
};

// {result in q's type, logarithm of the sum [batch, heads, n] in float32 or float64}; a query that
// sees none has zeros and -infinity.
std::pair<at::Tensor, at::Tensor> attend(const Block& block);

// What the whole softmax came to, of which this is a block: its gradient, result and logarithm of
// the sum.
struct Joined {
  at::Tensor dout, out, lse;
};

// This block's part of the gradients is added to dq, dk and dv.
struct Gradients {
  at::Tensor dq, dk, dv;
};
void add_gradients(const Block& block, const Joined& joined, const Gradients& to);

// Takes a further block's result and logarithm into those of the blocks before, which every query
// sees something of.
void join(at::Tensor& out, at::Tensor& lse, const std::pair<at::Tensor, at::Tensor>& block);

}  // namespace weft::parallel::internal
