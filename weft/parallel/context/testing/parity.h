// Tests' helpers: a whole sequence on one process by torch's own attention, and the same over
// ranks.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/tensors.h"
#include "weft/parallel/context/attention.h"

namespace weft::parallel::context_parity {

using comm::expect_close;
using comm::tolerance;
using comm::wave;

struct Case {
  std::int64_t length = 24, heads = 4, kv_heads = 4;
  bool causal = true, packed = false;
  at::ScalarType type = at::kDouble;
  ContextMethod method = ContextMethod::kRing;
  double dropout = 0;

  AttentionDropout dropping() const { return {.p = dropout, .address = {.seed = 11, .draw = 3}}; }
  // Of the whole, for one process: [2, heads, length, length].
  at::Tensor factors() const {
    at::Tensor all = torch::empty({2, heads, length, length}, at::kFloat);
    dropout_factors({all.mutable_data_ptr<float>(), static_cast<std::size_t>(all.numel())}, 0,
                    dropout, dropping().address);
    return all.to(at::kDouble);
  }
  std::string name() const {
    return std::to_string(length) + " positions, " + std::to_string(heads) + "/" +
           std::to_string(kv_heads) + (causal ? " causal" : "") + (packed ? " packed " : " ") +
           c10::toString(type) + (method == ContextMethod::kRing ? " ring" : " heads") +
           (dropout > 0 ? " dropping" : "");
  }
  // Two rows with documents of their own; the numbers are in no order.
  at::Tensor documents() const {
    const at::Tensor at = torch::arange(length);
    return torch::stack(
        {(at * 3).floor_divide(length).mul(5).remainder(7), at.ge(length / 2).to(torch::kLong)});
  }
};

struct Answer {
  at::Tensor q, k, v, factors, y, dq, dk, dv;
};

constexpr std::int64_t kWidth = 6;

// In float64 by torch's scaled_dot_product_attention, or its products where weights are dropped,
// from arguments that the case's type can hold.
inline Answer known(const Case& c) {
  Answer a;
  const auto make = [&](std::int64_t heads, double phase) {
    return wave({2, heads, c.length, kWidth}, phase).to(c.type).to(at::kDouble).requires_grad_();
  };
  a.q = make(c.heads, 0.1);
  a.k = make(c.kv_heads, 0.7);
  a.v = make(c.kv_heads, 1.9);
  a.factors = make(c.heads, 2.8).detach();
  at::Tensor sees = torch::ones({c.length, c.length}, torch::kBool);
  if (c.causal) sees = sees.tril();
  if (c.packed)
    sees = sees.logical_and(c.documents().unsqueeze(2).eq(c.documents().unsqueeze(1))).unsqueeze(1);
  const std::int64_t share = c.heads / c.kv_heads;
  const at::Tensor k = a.k.repeat_interleave(share, 1), v = a.v.repeat_interleave(share, 1);
  if (c.dropout > 0) {
    const at::Tensor scores =
        torch::matmul(a.q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(kWidth));
    a.y = torch::matmul(
        scores.masked_fill(sees.logical_not(), -std::numeric_limits<double>::infinity())
                .softmax(3) *
            c.factors(),
        v);
  } else {
    a.y = torch::scaled_dot_product_attention(a.q, k, v, sees);
  }
  (a.y * a.factors).sum().backward();
  a.dq = a.q.grad();
  a.dk = a.k.grad();
  a.dv = a.v.grad();
  return a;
}

// A rank's part of the answer, and of what led to it.
inline void compare(const Case& c, const Answer& a, const ContextParallel& cp) {
  const SequenceLayout layout = cp.layout(c.length);
  const auto mine = [&](const at::Tensor& x) { return cp.part(x.detach(), 2).to(c.type).clone(); };
  const at::Tensor q = mine(a.q).requires_grad_(), k = mine(a.k).requires_grad_(),
                   v = mine(a.v).requires_grad_();
  const at::Tensor documents = c.packed ? c.documents() : at::Tensor();
  const at::Tensor y = context_attention(
      q, k, v, layout, {.causal = c.causal, .documents = documents, .dropout = c.dropping()}, cp);
  EXPECT_EQ(y.scalar_type(), c.type);
  (y * mine(a.factors)).sum().backward();
  const std::string what =
      c.name() + ", rank " + std::to_string(cp.rank()) + " of " + std::to_string(cp.size());
  expect_close(y.detach(), cp.part(a.y.detach(), 2), what + ": y");
  expect_close(q.grad(), cp.part(a.dq, 2), what + ": dq");
  expect_close(k.grad(), cp.part(a.dk, 2), what + ": dk");
  expect_close(v.grad(), cp.part(a.dv, 2), what + ": dv");
}

}  // namespace weft::parallel::context_parity
