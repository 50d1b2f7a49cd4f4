// Attention of some queries to some keys on one rank, by libtorch's kernel, which also returns the
// logarithm of the softmax sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "weft/parallel/context/attention.h"

namespace weft::parallel::internal {

// The type of sums: float64 for float64, else float32.
at::ScalarType sum_type(const at::Tensor& x);

// Dropout of a block's weights, and the positions of its queries and keys in the whole: int64 [n],
// [m].
struct Dropped {
  AttentionDropout how;
  std::int64_t whole = 0;
  at::Tensor queries, keys;
};

// One block's operands. q [batch, heads, n, width], k and v [batch, kv_heads, m, width], with any
// strides; the last dimension is contiguous.
struct Block {
  at::Tensor q, k, v;
  at::Tensor q_documents, k_documents;  // [batch, n], [batch, m], or undefined
  bool causal = false;  // n = m, and query i sees keys 0 … i; else all of its document
  double scale = 1;
  Dropped dropped = {};  // used if its p is above 0
};

// Returns {result in q's type, logarithm of the sum [batch, heads, n] in float32 or float64}. A
// query without visible keys has zeros and -infinity.
std::pair<at::Tensor, at::Tensor> attend(const Block& block);

// Gradient, result and logarithm of the sum of the whole softmax, of which this is a block.
struct Joined {
  at::Tensor dout, out, lse;
};

// Adds this block's part of the gradients to dq, dk and dv.
struct Gradients {
  at::Tensor dq, dk, dv;
};
void add_gradients(const Block& block, const Joined& joined, const Gradients& to);

// Merges the result and logarithm of another block into those of the previous blocks, in which
// every query has visible keys.
void join(at::Tensor& out, at::Tensor& lse, const std::pair<at::Tensor, at::Tensor>& block);

}  // namespace weft::parallel::internal
