#include "weft/parallel/tensor/attention.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "weft/parallel/tensor/dropout.h"

namespace weft::parallel {
namespace {

// [b, t, heads · d] -> [b, heads, t, d]
at::Tensor by_head(const at::Tensor& x, std::int64_t heads) { return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2); }

// Which positions a position sees: bool [t, t] or [b, 1, t, t].
at::Tensor visible(const at::Tensor& documents, std::int64_t t) {
  const at::Tensor causal = torch::ones({t, t}, torch::kBool).tril();
  if (!documents.defined()) return causal;
  return documents.unsqueeze(-1).eq(documents.unsqueeze(-2)).logical_and(causal).unsqueeze(1);
}

}  // namespace

AttentionImpl::AttentionImpl(AttentionOptions options_, TensorParallel tp) : options(options_), tp_(std::move(tp)) {
  WEFT_REQUIRE(options.width > 0 && options.heads > 0 && options.kv_heads >= 0, "Attention: width and heads are at least 1");
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  if (options.head_width == 0) {
    WEFT_REQUIRE(options.width % options.heads == 0, "Attention: a width of " + std::to_string(options.width) + " does not divide by " +
                                                         std::to_string(options.heads) + " heads");
    options.head_width = options.width / options.heads;
  }
  WEFT_REQUIRE(options.heads % options.kv_heads == 0, "Attention: " + std::to_string(options.heads) + " heads do not share " +
                                                          std::to_string(options.kv_heads) + " heads of keys and values evenly");
  WEFT_REQUIRE(options.rope_theta == 0 || options.head_width % 2 == 0,
               "Attention: rotary positions need heads of even width, not " + std::to_string(options.head_width));
  heads_ = even_part("Attention: heads", options.heads, tp_.size());
  const std::int64_t share = options.heads / options.kv_heads;
  kv_whole_ = options.kv_heads % tp_.size() != 0;
  kv_first_ = tp_.rank() * heads_ / share;
  kv_count_ = ((tp_.rank() + 1) * heads_ - 1) / share + 1 - kv_first_;
  AttentionImpl::reset();
}

void AttentionImpl::reset() {
  const std::int64_t out = options.heads * options.head_width, kv = options.kv_heads * options.head_width;
  LinearOptions in{.in = options.width, .out = out, .split = Split::kColumn, .bias = options.bias, .normal = options.normal};
  q_proj = register_module("q_proj", Linear(in, tp_));
  in.out = kv;
  if (kv_whole_) in.split = Split::kNone;
  k_proj = register_module("k_proj", Linear(in, tp_));
  v_proj = register_module("v_proj", Linear(in, tp_));
  LinearOptions back{.in = out, .out = options.width, .split = Split::kRow, .bias = options.bias, .sequence = options.sequence};
  back.chunks = options.chunks;
  back.normal = options.normal_out;
  o_proj = register_module("o_proj", Linear(back, tp_));
}

at::Tensor AttentionImpl::keys_or_values(const Linear& proj, const at::Tensor& x) const {
  const std::int64_t d = options.head_width;
  at::Tensor y;
  if (kv_whole_) {
    const auto rows = [&](const at::Tensor& whole) { return copy_to(whole, tp_).narrow(0, kv_first_ * d, kv_count_ * d); };
    y = torch::linear(x, rows(proj->weight), proj->bias.defined() ? rows(proj->bias) : at::Tensor());
  } else {
    y = proj->multiply(x);
  }
  return by_head(y, kv_count_);
}

at::Tensor AttentionImpl::rotate(const at::Tensor& x) {
  const std::int64_t t = x.size(2), d = options.head_width;
  if (!cos_.defined() || cos_.size(0) < t || cos_.dtype() != x.dtype() || cos_.device() != x.device()) {
    const at::NoGradGuard no_grad;
    const at::Tensor rates = torch::pow(options.rope_theta, torch::arange(0, d, 2, torch::kDouble) / -static_cast<double>(d));
    const at::Tensor angles = torch::outer(torch::arange(t, torch::kDouble), rates);
    cos_ = angles.cos().to(x.options().requires_grad(false));
    sin_ = angles.sin().to(x.options().requires_grad(false));
  }
  const at::Tensor cos = cos_.narrow(0, 0, t), sin = sin_.narrow(0, 0, t);
  const auto half = x.chunk(2, -1);
  return torch::cat({half[0] * cos - half[1] * sin, half[1] * cos + half[0] * sin}, -1);
}

at::Tensor AttentionImpl::attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& documents) const {
  const std::int64_t t = q.size(2);
  if (!is_training() || options.dropout == 0) {
    if (!documents.defined()) return torch::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    return torch::scaled_dot_product_attention(q, k, v, visible(documents, t));
  }
  // libtorch's kernels draw from its one generator, which has no addresses.
  const at::Tensor scores = torch::matmul(q, k.transpose(-2, -1)) / std::sqrt(static_cast<double>(options.head_width));
  const at::Tensor hidden = visible(documents, t).logical_not();
  const at::Tensor weights = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1);
  return torch::matmul(dropout(weights, options.dropout, 1, tp_), v);
}

at::Tensor AttentionImpl::forward(const at::Tensor& given, const at::Tensor& documents) {
  WEFT_REQUIRE(given.dim() == 3 && given.size(2) == options.width,
               "Attention: the input is [batch, sequence, " + std::to_string(options.width) + "]");
  const at::Tensor x = enter_split(given, options.sequence, tp_);
  WEFT_REQUIRE(!documents.defined() || documents.sizes() == x.sizes().slice(0, 2), "Attention: documents are [batch, whole sequence]");
  at::Tensor q = by_head(q_proj->multiply(x), heads_), k = keys_or_values(k_proj, x), v = keys_or_values(v_proj, x);
  if (options.rope_theta > 0) {
    q = rotate(q);
    k = rotate(k);
  }
  if (kv_count_ != heads_) {
    std::vector<std::int64_t> of_query(static_cast<std::size_t>(heads_));
    const std::int64_t share = options.heads / options.kv_heads;
    for (std::int64_t i = 0; i < heads_; ++i) of_query[static_cast<std::size_t>(i)] = (tp_.rank() * heads_ + i) / share - kv_first_;
    const at::Tensor index = torch::tensor(of_query, torch::kLong).to(k.device());
    k = k.index_select(1, index);
    v = v.index_select(1, index);
  }
  const at::Tensor y = attend(q, k, v, documents).transpose(1, 2).reshape({x.size(0), x.size(1), -1});
  return o_proj->forward(y);
}

}  // namespace weft::parallel
