#include "weft/parallel/context/internal/heads.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <vector>

#include "weft/parallel/context/internal/ring.h"

namespace weft::parallel::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeadTerms final : torch::CustomClassHolder {
  HeadTerms(const SequenceLayout& layout_, const ContextParallel& cp_) : layout(layout_), cp(cp_) {}
  SequenceLayout layout;
  ContextParallel cp;
};

// [batch, ranks · n, length(rank), width], heads ordered by receiving rank -> [batch, n, whole,
// width].
at::Tensor to_heads(const at::Tensor& x, const HeadTerms& terms) {
  const SequenceLayout& lay = terms.layout;
  const std::int64_t batch = x.size(0), n = x.size(1) / lay.ranks, here = x.size(2),
                     width = x.size(3);
  const at::Tensor give = at::zeros({lay.ranks, batch, n, lay.longest(), width}, x.options());
  give.narrow(3, 0, here).copy_(x.reshape({batch, lay.ranks, n, here, width}).movedim(1, 0));
  at::Tensor got = at::empty_like(give);
  terms.cp.group().all_to_all(got, give);
  const at::Tensor whole = at::empty({batch, n, lay.whole, width}, x.options());
  for (int rank = 0; rank < lay.ranks; ++rank) {
    const auto low = lay.low(rank), high = lay.high(rank);
    whole.narrow(2, low.begin, low.size).copy_(got[rank].narrow(2, 0, low.size));
    whole.narrow(2, high.begin, high.size).copy_(got[rank].narrow(2, low.size, high.size));
  }
  return whole;
}

// The reverse.
at::Tensor to_positions(const at::Tensor& whole, const HeadTerms& terms) {
  const SequenceLayout& lay = terms.layout;
  const std::int64_t batch = whole.size(0), n = whole.size(1), here = lay.length(terms.cp.rank()),
                     width = whole.size(3);
  const at::Tensor give = at::zeros({lay.ranks, batch, n, lay.longest(), width}, whole.options());
  for (int rank = 0; rank < lay.ranks; ++rank) {
    const auto low = lay.low(rank), high = lay.high(rank);
    give[rank].narrow(2, 0, low.size).copy_(whole.narrow(2, low.begin, low.size));
    give[rank].narrow(2, low.size, high.size).copy_(whole.narrow(2, high.begin, high.size));
  }
  at::Tensor got = at::empty_like(give);
  terms.cp.group().all_to_all(got, give);
  return got.narrow(3, 0, here).movedim(0, 1).reshape({batch, lay.ranks * n, here, width});
}

using Map = at::Tensor (*)(const at::Tensor&, const HeadTerms&);

// Each is the gradient of the other.
template <Map kForward, Map kBackward>
struct Exchange final : torch::autograd::Function<Exchange<kForward, kBackward>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<HeadTerms>& terms) {
    context->saved_data["terms"] = c10::IValue::make_capsule(terms);
    return kForward(x, *terms);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {kBackward(gradients[0], *c10::static_intrusive_pointer_cast<HeadTerms>(
                                        context->saved_data["terms"].toCapsule())),
            {}};
  }
};

void require_heads(std::int64_t heads, std::int64_t kv_heads, int ranks) {
  const std::int64_t below = heads / ranks * ranks;
  WEFT_REQUIRE(below == heads,
               "context parallelism by heads: " + std::to_string(heads) +
                   " heads do not divide by " + std::to_string(ranks) +
                   " ranks; the nearest that " +
                   (below > 0 ? "do are " + std::to_string(below) + " and " : "does is ") +
                   std::to_string(below + ranks) + ", or use the ring (ContextMethod::kRing)");
  WEFT_REQUIRE(kv_heads % ranks == 0 || ranks % kv_heads == 0,
               "context parallelism by heads: " + std::to_string(kv_heads) +
                   " heads of keys and values and " + std::to_string(ranks) +
                   " ranks do not divide one another; use the ring (ContextMethod::kRing)");
}

// The heads of [q, k, v] that each rank gets, rank by rank. Keys shared by queries of several ranks
// go to each of them.
at::Tensor order(std::int64_t heads, std::int64_t kv_heads, int ranks) {
  std::vector<std::int64_t> all;
  const std::int64_t mine = heads / ranks, kv_mine = std::max<std::int64_t>(1, kv_heads / ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::int64_t i = 0; i < mine; ++i) all.push_back(rank * mine + i);
    const std::int64_t first = rank * kv_heads / ranks;
    for (std::int64_t i = 0; i < kv_mine; ++i) all.push_back(heads + first + i);
    for (std::int64_t i = 0; i < kv_mine; ++i) all.push_back(heads + kv_heads + first + i);
  }
  return at::tensor(all, at::kLong);
}

}  // namespace

at::Tensor heads_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const SequenceLayout& layout, const ContextAttentionOptions& options,
                           const ContextParallel& cp) {
  const std::int64_t heads = q.size(1), kv_heads = k.size(1);
  require_heads(heads, kv_heads, cp.size());
  const auto terms = c10::make_intrusive<HeadTerms>(layout, cp);
  const at::Tensor given = at::cat({q, k, v}, 1).index_select(1, order(heads, kv_heads, cp.size()));
  const at::Tensor mine = Exchange<to_heads, to_positions>::apply(given, terms);
  const std::int64_t n = heads / cp.size(), kv = (mine.size(1) - n) / 2;
  ContextAttentionOptions here = options;
  here.dropout.first_head += cp.rank() * n;
  const at::Tensor y =
      ring_attention(mine.narrow(1, 0, n), mine.narrow(1, n, kv), mine.narrow(1, n + kv, kv),
                     {layout.whole, 1}, here, ContextParallel());
  return Exchange<to_positions, to_heads>::apply(y, terms);
}

}  // namespace weft::parallel::internal
