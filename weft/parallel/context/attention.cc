#include "weft/parallel/context/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>

#include "weft/parallel/context/internal/heads.h"
#include "weft/parallel/context/internal/ring.h"

namespace weft::parallel {
namespace {

std::string shape(const at::Tensor& x) { return c10::str(x.sizes()); }

void require_fit(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const SequenceLayout& layout, const ContextParallel& cp) {
  WEFT_REQUIRE(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
                   q.size(2) == k.size(2) && q.size(3) == k.size(3) && k.size(1) > 0 &&
                   q.size(1) % k.size(1) == 0,
               "context_attention: q must be [batch, heads, positions, head_width], and k and v "
               "the same with heads that divide q's; q is " +
                   shape(q) + ", k " + shape(k) + ", v " + shape(v));
  WEFT_REQUIRE(layout.ranks == cp.size() && q.size(2) == layout.length(cp.rank()),
               "context_attention: of " + std::to_string(layout.whole) + " positions over " +
                   std::to_string(layout.ranks) + " ranks, rank " + std::to_string(cp.rank()) +
                   " of " + std::to_string(cp.size()) + " gave " + std::to_string(q.size(2)));
  const auto type = q.scalar_type();
  WEFT_REQUIRE((type == at::kFloat || type == at::kDouble || type == at::kBFloat16) &&
                   k.scalar_type() == type && v.scalar_type() == type && q.is_cpu() && k.is_cpu() &&
                   v.is_cpu(),
               "context_attention: tensors must have one type, float32, float64 or bfloat16, and "
               "be on the CPU");
}

}  // namespace

at::Tensor context_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const SequenceLayout& layout, const ContextAttentionOptions& options,
                             const ContextParallel& cp) {
  require_fit(q, k, v, layout, cp);
  ContextAttentionOptions complete = options;
  if (complete.scale == 0) complete.scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  WEFT_REQUIRE(complete.dropout.p >= 0 && complete.dropout.p < 1,
               "context_attention: dropout must be in [0, 1)");
  if (complete.dropout.heads == 0) complete.dropout.heads = q.size(1);
  if (complete.documents.defined()) {
    WEFT_REQUIRE(
        complete.documents.scalar_type() == at::kLong && complete.documents.dim() == 2 &&
            complete.documents.size(0) == q.size(0) && complete.documents.size(1) == layout.whole,
        "context_attention: documents must be int64 [" + std::to_string(q.size(0)) + ", " +
            std::to_string(layout.whole) + "] (batch, whole sequence), not " +
            c10::toString(complete.documents.scalar_type()) + " " + shape(complete.documents));
  }
  const bool by_heads = cp.size() > 1 && cp.method() == ContextMethod::kHeads;
  return (by_heads ? internal::heads_attention : internal::ring_attention)(q, k, v, layout,
                                                                           complete, cp);
}

}  // namespace weft::parallel
