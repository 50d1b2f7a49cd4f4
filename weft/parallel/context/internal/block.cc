#include "weft/parallel/context/internal/block.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>
#include <vector>

namespace weft::parallel::internal {
namespace {

constexpr std::int64_t kStrip = 256;  // rows of a mask that are computed at once
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows [begin, begin + count) of a block, and its first `keys`.
struct Strip {
  std::int64_t begin = 0, count = 0, keys = 0;
  bool causal = false;  // the kernel applies the causal mask
  at::Tensor sees;      // bool [batch or 1, count, keys]; undefined: all, or as `causal` says
  at::Tensor mask;      // 0 or -infinity, [batch, 1, count, keys], in q's type
};

// True if libtorch's kernel supports the block as it is.
bool by_one_kernel(const Block& block) {
  return !block.q_documents.defined() && block.dropped.how.p == 0;
}

at::Tensor seen(const Block& block, const Strip& strip) {
  at::Tensor sees = at::ones({1, strip.count, strip.keys}, at::kBool);
  if (block.causal) sees = sees.tril(strip.begin);
  if (!block.q_documents.defined()) return sees;
  const at::Tensor rows = block.q_documents.narrow(1, strip.begin, strip.count),
                   keys = block.k_documents.narrow(1, 0, strip.keys);
  return rows.unsqueeze(2).eq(keys.unsqueeze(1)).logical_and_(sees);
}

// The strips with at least one visible key.
void each_strip(const Block& block, const std::function<void(const Strip&)>& fn) {
  const std::int64_t n = block.q.size(2), m = block.k.size(2);
  if (n == 0 || m == 0) return;
  if (by_one_kernel(block)) return fn({0, n, m, block.causal, {}, {}});
  for (std::int64_t begin = 0; begin < n; begin += kStrip) {
    Strip strip{begin, std::min(kStrip, n - begin), m, false, {}, {}};
    if (block.causal) strip.keys = begin + strip.count;
    strip.sees = seen(block, strip);
    if (!strip.sees.any().item<bool>()) continue;
    if (strip.sees.all().item<bool>()) {
      strip.sees = at::Tensor();
    } else if (block.dropped.how.p == 0) {
      strip.mask = at::zeros(strip.sees.sizes(), block.q.options())
                       .masked_fill_(strip.sees.logical_not(), -kInfinity)
                       .unsqueeze(1);
    }
    fn(strip);
  }
}

std::optional<at::Tensor> given(const at::Tensor& mask) {
  return mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt;
}

// Expands keys or values to all query heads; the reverse sums gradients over the query heads that
// share them.
at::Tensor for_queries(const at::Tensor& x, std::int64_t heads, std::int64_t keys) {
  return x.narrow(2, 0, keys).to(sum_type(x)).repeat_interleave(heads / x.size(1), 1);
}
at::Tensor for_keys(const at::Tensor& x, std::int64_t kv_heads) {
  return x.view({x.size(0), kv_heads, x.size(1) / kv_heads, x.size(2), x.size(3)}).sum(2);
}

// A strip's operands with dropout, all in the type of sums; k and v are expanded to all query
// heads.
struct Operands {
  at::Tensor q, k, v, scores;

  Operands(const Block& block, const Strip& s)
      : q(block.q.narrow(2, s.begin, s.count).to(sum_type(block.q))),
        k(for_queries(block.k, q.size(1), s.keys)),
        v(for_queries(block.v, q.size(1), s.keys)),
        scores(at::matmul(q, k.transpose(-2, -1)).mul_(block.scale)) {
    if (s.sees.defined()) scores.masked_fill_(s.sees.logical_not().unsqueeze(1), -kInfinity);
  }
  // exp(scores - lse); 0 for a query without visible keys.
  at::Tensor weights(const at::Tensor& lse) const {
    return (scores - lse.masked_fill(lse.eq(-kInfinity), 0).unsqueeze(-1)).exp_();
  }
};

// A run of keys that are consecutive in the whole sequence: entries [begin, begin + count) of the
// block, from `position` on.
struct Run {
  std::int64_t begin = 0, count = 0, position = 0;
};

std::vector<Run> runs_of(const at::Tensor& keys, std::int64_t count) {
  const auto at = keys.accessor<std::int64_t, 1>();
  std::vector<Run> runs;
  for (std::int64_t i = 0; i < count; ++i) {
    if (runs.empty() || at[i] != runs.back().position + runs.back().count)
      runs.push_back({i, 0, at[i]});
    ++runs.back().count;
  }
  return runs;
}

// Dropout factors of the strip's weights: [batch, heads, count, keys].
at::Tensor factors(const Block& block, const Strip& s) {
  const auto& [how, whole, queries, keys] = block.dropped;
  const std::int64_t heads = block.q.size(1);
  const at::Tensor all = at::empty({block.q.size(0), heads, s.count, s.keys}, at::kFloat);
  auto* const to = all.mutable_data_ptr<float>();
  const auto at = queries.accessor<std::int64_t, 1>();
  const std::vector<Run> runs = runs_of(keys, s.keys);
  at::parallel_for(
      0, all.size(0) * heads * s.count, 16,
      [&, &how = how, whole = whole](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t query = at[s.begin + i % s.count],
                             head = i / s.count % heads + how.first_head,
                             sample = i / s.count / heads;
          const std::int64_t row = ((sample * how.heads + head) * whole + query) * whole;
          for (const Run& run : runs) {
            dropout_factors({to + i * s.keys + run.begin, static_cast<std::size_t>(run.count)},
                            static_cast<std::uint64_t>(row + run.position), how.p, how.address);
          }
        }
      });
  return all.to(sum_type(block.q));
}

std::pair<at::Tensor, at::Tensor> attend_dropping(const Block& block, const Strip& strip) {
  const Operands of(block, strip);
  const at::Tensor lse = of.scores.logsumexp(-1);
  return {at::matmul(of.weights(lse).mul_(factors(block, strip)), of.v).to(block.q.scalar_type()),
          lse};
}

// With weights p, factors f and dp = f (dout v^T):
//
//   dv = (f p)^T dout,   ds = p (dp - sum of dout out)
//
// The sum of dout out equals the sum of p dp, with or without dropout.
void add_dropping_gradients(const Block& block, const Strip& s, const Joined& joined,
                            const Gradients& to) {
  const Operands of(block, s);
  const auto rows = [&](const at::Tensor& x) { return x.narrow(2, s.begin, s.count); };
  const at::Tensor dout = rows(joined.dout).to(of.q.scalar_type()), f = factors(block, s),
                   p = of.weights(rows(joined.lse));
  const at::Tensor sum = (dout * rows(joined.out)).sum(-1, /*keepdim=*/true);
  const at::Tensor dv = at::matmul((p * f).transpose(-2, -1), dout);
  const at::Tensor ds =
      at::matmul(dout, of.v.transpose(-2, -1)).mul_(f).sub_(sum).mul_(p).mul_(block.scale);
  rows(to.dq).add_(at::matmul(ds, of.k));
  to.dk.narrow(2, 0, s.keys)
      .add_(for_keys(at::matmul(ds.transpose(-2, -1), of.q), block.k.size(1)));
  to.dv.narrow(2, 0, s.keys).add_(for_keys(dv, block.v.size(1)));
}

std::pair<at::Tensor, at::Tensor> attend(const Block& block, const Strip& strip) {
  if (block.dropped.how.p > 0) return attend_dropping(block, strip);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      block.q.narrow(2, strip.begin, strip.count), block.k.narrow(2, 0, strip.keys),
      block.v.narrow(2, 0, strip.keys), 0.0, strip.causal, given(strip.mask), block.scale);
  // The kernel returns 0 as the logarithm of an empty sum.
  if (strip.sees.defined())
    lse = lse.masked_fill(strip.sees.any(-1).logical_not_().unsqueeze(1), -kInfinity);
  return {out, lse};
}

}  // namespace

at::ScalarType sum_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::pair<at::Tensor, at::Tensor> attend(const Block& block) {
  if (by_one_kernel(block) && block.q.size(2) > 0 && block.k.size(2) > 0) {
    return attend(block, {0, block.q.size(2), block.k.size(2), block.causal, {}, {}});
  }
  const auto& q = block.q;  // the result has the layout of the kernel: [batch, n, heads, width]
  const at::Tensor out =
      at::zeros({q.size(0), q.size(2), q.size(1), q.size(3)}, q.options()).transpose(1, 2);
  const at::Tensor lse = at::full(block.q.sizes().slice(0, 3), -kInfinity,
                                  out.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  each_strip(block, [&](const Strip& strip) {
    const auto [o, l] = attend(block, strip);
    out.narrow(2, strip.begin, strip.count).copy_(o);
    lse.narrow(2, strip.begin, strip.count).copy_(l);
  });
  return {out, lse};
}

void add_gradients(const Block& block, const Joined& joined, const Gradients& to) {
  each_strip(block, [&](const Strip& s) {
    if (block.dropped.how.p > 0) return add_dropping_gradients(block, s, joined, to);
    const auto rows = [&](const at::Tensor& x) { return x.narrow(2, s.begin, s.count); };
    const auto keys = [&](const at::Tensor& x) { return x.narrow(2, 0, s.keys); };
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        rows(joined.dout), rows(block.q), keys(block.k), keys(block.v), rows(joined.out),
        rows(joined.lse), 0.0, s.causal, given(s.mask), block.scale);
    rows(to.dq).add_(dq);
    keys(to.dk).add_(dk);
    keys(to.dv).add_(dv);
  });
}

void join(at::Tensor& out, at::Tensor& lse, const std::pair<at::Tensor, at::Tensor>& block) {
  const at::Tensor& further = block.second;
  // exp(further) / (exp(lse) + exp(further)); 0 for a query without visible keys in the block.
  out.lerp_(block.first.to(out.scalar_type()), at::sigmoid(further - lse).unsqueeze(-1));
  lse.copy_(at::logaddexp(lse, further));
}

}  // namespace weft::parallel::internal
