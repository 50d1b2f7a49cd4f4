#include "weft/parallel/tensor/attention.h"

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <vector>

#include "weft/parallel/context/attention.h"
#include "weft/parallel/recompute/recompute.h"
#include "weft/parallel/tensor/dropout.h"

namespace weft::parallel {
namespace {

// [b, t, heads · d] -> [b, heads, t, d]
at::Tensor by_head(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

// Positions visible to each position: bool [t, t] or [b, 1, t, t], on the device of the queries.
at::Tensor visible(const at::Tensor& documents, const at::Tensor& q) {
  const std::int64_t t = q.size(2);
  const at::Tensor causal =
      torch::ones({t, t}, torch::TensorOptions(torch::kBool).device(q.device())).tril();
  if (!documents.defined()) return causal;
  const at::Tensor all = documents.to(q.device());
  return all.unsqueeze(-1).eq(all.unsqueeze(-2)).logical_and(causal).unsqueeze(1);
}

// Attention with dropout of the weights. libtorch's kernels draw from its global generator, whose
// numbers have no index.
at::Tensor attend_dropping(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& sees, double p, const TensorParallel& tp) {
  const at::Tensor scores =
      torch::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor weights =
      scores.masked_fill(sees.logical_not(), -std::numeric_limits<double>::infinity()).softmax(-1);
  return torch::matmul(dropout(weights, p, 1, tp), v);
}

// Radians per position, [head_width / 2].
at::Tensor rates_of(const AttentionOptions& o) {
  const at::Tensor rates =
      torch::pow(o.rope_theta, torch::arange(0, o.head_width, 2, torch::kDouble) /
                                   -static_cast<double>(o.head_width));
  const RopeScaling& s = o.rope_scaling;
  if (s.factor == 1) return rates;
  const at::Tensor turns = rates * (s.original / (2 * std::numbers::pi));
  const at::Tensor kept = ((turns - s.low) / (s.high - s.low)).clamp(0, 1);
  return rates * (kept + (1 - kept) / s.factor);
}

// Appends `more` after the first `length` positions of `room`. It gets new memory if it is full, or
// if a copy of the cache has the same tensor. Returns all positions.
at::Tensor appended(at::Tensor& room, const at::Tensor& more, std::int64_t length) {
  const std::int64_t count = more.size(2), need = length + count;
  if (!room.defined() || room.size(2) < need || room.use_count() > 1) {
    const at::Tensor larger = torch::empty(
        {more.size(0), more.size(1), std::max(need, 2 * length), more.size(3)}, more.options());
    if (length > 0) larger.narrow(2, 0, length).copy_(room.narrow(2, 0, length));
    room = larger;
  }
  room.narrow(2, length, count).copy_(more);
  return room.narrow(2, 0, need);
}

}  // namespace

AttentionImpl::AttentionImpl(AttentionOptions options_, TensorParallel tp, ContextParallel cp)
    : options(options_), tp_(std::move(tp)), cp_(std::move(cp)) {
  WEFT_REQUIRE(options.width > 0 && options.heads > 0 && options.kv_heads >= 0,
               "Attention: width and heads must be at least 1");
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  if (options.head_width == 0) {
    WEFT_REQUIRE(options.width % options.heads == 0,
                 "Attention: a width of " + std::to_string(options.width) + " does not divide by " +
                     std::to_string(options.heads) + " heads");
    options.head_width = options.width / options.heads;
  }
  WEFT_REQUIRE(options.heads % options.kv_heads == 0,
               "Attention: " + std::to_string(options.heads) + " heads cannot share " +
                   std::to_string(options.kv_heads) + " heads of keys and values evenly");
  WEFT_REQUIRE(options.rope_theta == 0 || options.head_width % 2 == 0,
               "Attention: rotary positions need an even head width, not " +
                   std::to_string(options.head_width));
  WEFT_REQUIRE(
      options.rope_scaling.factor == 1 ||
          (options.rope_scaling.factor > 0 && options.rope_scaling.low < options.rope_scaling.high),
      "Attention: rope_scaling needs a factor above 0, and low below high");
  heads_ = even_part("Attention: heads", options.heads, tp_.size());
  const std::int64_t share = options.heads / options.kv_heads;
  kv_whole_ = options.kv_heads % tp_.size() != 0;
  kv_first_ = tp_.rank() * heads_ / share;
  kv_count_ = ((tp_.rank() + 1) * heads_ - 1) / share + 1 - kv_first_;
  AttentionImpl::reset();
}

void AttentionImpl::reset() {
  const std::int64_t out = options.heads * options.head_width,
                     kv = options.kv_heads * options.head_width;
  LinearOptions in{.in = options.width,
                   .out = out,
                   .split = Split::kColumn,
                   .bias = options.bias,
                   .normal = options.normal};
  q_proj = register_module("q_proj", Linear(in, tp_));
  in.out = kv;
  if (kv_whole_) in.split = Split::kNone;
  k_proj = register_module("k_proj", Linear(in, tp_));
  v_proj = register_module("v_proj", Linear(in, tp_));
  LinearOptions back{.in = out,
                     .out = options.width,
                     .split = Split::kRow,
                     .bias = options.bias,
                     .sequence = options.sequence};
  back.chunks = options.chunks;
  back.normal = options.normal_out;
  o_proj = register_module("o_proj", Linear(back, tp_));
}

at::Tensor AttentionImpl::keys_or_values(const Linear& proj, const at::Tensor& x) const {
  const std::int64_t d = options.head_width;
  at::Tensor y;
  if (kv_whole_) {
    const auto rows = [&](const at::Tensor& whole) {
      return copy_to(whole, tp_).narrow(0, kv_first_ * d, kv_count_ * d);
    };
    y = torch::linear(x, rows(proj->weight),
                      proj->bias.defined() ? rows(proj->bias) : at::Tensor());
  } else {
    y = proj->multiply(x);
  }
  return by_head(y, kv_count_);
}

at::Tensor AttentionImpl::rotate(const at::Tensor& x, const SequenceLayout& layout,
                                 std::int64_t first) {
  const std::int64_t t = first + layout.whole;
  if (!cos_.defined() || cos_.size(0) < t || cos_.dtype() != x.dtype() ||
      cos_.device() != x.device()) {
    // Tensors that are made in inference mode cannot be used in training.
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    // extend() is called with one more position each time.
    const std::int64_t room = first == 0 ? t : 2 * t;
    const at::Tensor angles = torch::outer(torch::arange(room, torch::kDouble), rates_of(options));
    cos_ = angles.cos().to(x.options().requires_grad(false));
    sin_ = angles.sin().to(x.options().requires_grad(false));
  }
  const at::Tensor cos = layout.part(cos_.slice(0, first, t), 0, cp_.rank()),
                   sin = layout.part(sin_.slice(0, first, t), 0, cp_.rank());
  const auto half = x.chunk(2, -1);
  return torch::cat({half[0] * cos - half[1] * sin, half[1] * cos + half[0] * sin}, -1);
}

// True if query head i of this rank uses key head i / (heads / kv_count). False if ranks divide a
// group of query heads that share keys.
bool AttentionImpl::shared_evenly() const {
  return heads_ == options.heads / options.kv_heads * kv_count_ || kv_count_ == 1;
}

// Expands keys or values to all query heads.
at::Tensor AttentionImpl::share_keys(const at::Tensor& x) const {
  if (kv_count_ == heads_) return x;
  std::vector<std::int64_t> of_query(static_cast<std::size_t>(heads_));
  const std::int64_t share = options.heads / options.kv_heads;
  for (std::int64_t i = 0; i < heads_; ++i)
    of_query[static_cast<std::size_t>(i)] = (tp_.rank() * heads_ + i) / share - kv_first_;
  return x.index_select(1, torch::tensor(of_query, torch::kLong).to(x.device()));
}

at::Tensor AttentionImpl::attend(const at::Tensor& q, at::Tensor k, at::Tensor v,
                                 const at::Tensor& documents) const {
  k = share_keys(k);
  v = share_keys(v);
  if (!is_training() || options.dropout == 0) {
    if (!documents.defined())
      return torch::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    return torch::scaled_dot_product_attention(q, k, v, visible(documents, q));
  }
  const auto core = [p = options.dropout, tp = tp_, documents](const at::Tensor& queries,
                                                               const at::Tensor& keys,
                                                               const at::Tensor& values) {
    return attend_dropping(queries, keys, values, visible(documents, queries), p, tp);
  };
  if (!options.recompute) return core(q, k, v);
  const PreserveState draws = preserve_draws(tp_);
  return recompute_with({.random = false, .preserve = {draws}}, core, q, k, v);
}

at::Tensor AttentionImpl::attend_over_ranks(const at::Tensor& q, const at::Tensor& k,
                                            const at::Tensor& v, const SequenceLayout& layout,
                                            const at::Tensor& documents) const {
  const auto of_queries = [&](const at::Tensor& kv) {
    return shared_evenly() ? kv : share_keys(kv);
  };
  ContextAttentionOptions how{.documents = documents};
  if (is_training() && options.dropout > 0) {
    const auto [seed, draw] = tp_.next_draw();
    how.dropout = {options.dropout, {seed, draw}, tp_.rank() * heads_, options.heads};
  }
  return context_attention(q, of_queries(k), of_queries(v), layout, how, cp_);
}

at::Tensor AttentionImpl::forward(const at::Tensor& given, const at::Tensor& documents) {
  WEFT_REQUIRE(
      given.dim() == 3 && given.size(2) == options.width,
      "Attention: the input must be [batch, sequence, " + std::to_string(options.width) + "]");
  const at::Tensor x = in_product_type(enter_split(given, options.sequence, tp_));
  WEFT_REQUIRE(!documents.defined() || (documents.dim() == 2 && documents.size(0) == x.size(0)),
               "Attention: documents must be [batch, whole sequence]");
  const SequenceLayout layout =
      documents.defined() ? cp_.layout(documents.size(1)) : cp_.layout_of_part(x.size(1));
  WEFT_REQUIRE(layout.length(cp_.rank()) == x.size(1),
               "Attention: documents must be [batch, whole sequence]");
  at::Tensor q = by_head(q_proj->multiply(x), heads_), k = keys_or_values(k_proj, x),
             v = keys_or_values(v_proj, x);
  if (options.rope_theta > 0) {
    q = rotate(q, layout);
    k = rotate(k, layout);
  }
  const at::Tensor y =
      cp_.size() == 1 ? attend(q, k, v, documents) : attend_over_ranks(q, k, v, layout, documents);
  return o_proj->forward(y.transpose(1, 2).flatten(2));
}

at::Tensor AttentionImpl::extend(const at::Tensor& x, AttentionCache& cache) {
  WEFT_REQUIRE(
      x.dim() == 3 && x.size(2) == options.width,
      "Attention: the input must be [batch, new positions, " + std::to_string(options.width) + "]");
  WEFT_REQUIRE(options.sequence == Sequence::kWhole,
               "Attention: extend() does not support a split sequence");
  WEFT_REQUIRE(!is_training() || options.dropout == 0,
               "Attention: extend() does not support dropout; call eval() on the model first");
  WEFT_REQUIRE(cp_.size() == 1, "Attention: extend() does not support context parallelism");
  WEFT_REQUIRE(cache.length == 0 || cache.keys.size(0) == x.size(0),
               "Attention: a batch of " + std::to_string(x.size(0)) +
                   ", but the cache is for another batch size");
  const at::NoGradGuard no_grad;
  const std::int64_t first = cache.length, count = x.size(1);
  at::Tensor q = by_head(q_proj->multiply(x), heads_), k = keys_or_values(k_proj, x);
  if (options.rope_theta > 0) {
    q = rotate(q, cp_.layout(count), first);
    k = rotate(k, cp_.layout(count), first);
  }
  k = share_keys(appended(cache.keys, k, first));
  const at::Tensor v = share_keys(appended(cache.values, keys_or_values(v_proj, x), first));
  cache.length += count;
  // A single new position sees all others. Several see only earlier positions.
  std::optional<at::Tensor> mask;
  if (count > 1 && first > 0)
    mask =
        torch::ones({count, first + count}, torch::TensorOptions(torch::kBool).device(x.device()))
            .tril(first);
  const at::Tensor y =
      torch::scaled_dot_product_attention(q, k, v, mask, 0.0, /*is_causal=*/first == 0);
  return o_proj->forward(y.transpose(1, 2).reshape({x.size(0), count, -1}));
}

}  // namespace weft::parallel
