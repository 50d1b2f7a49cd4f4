#include "weft/parallel/experts/router.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/parallel/experts/internal/initial.h"

namespace weft::parallel {
namespace {

constexpr std::uint32_t kStream = 0x6a697474;  // "jitt": used by no other part of weft

void require(const RouterOptions& o) {
  WEFT_REQUIRE(o.width > 0 && o.experts > 0, "Router: width and experts must be at least 1");
  WEFT_REQUIRE(o.top_k >= 1 && o.top_k <= o.experts,
               "Router: top_k = " + std::to_string(o.top_k) + " of " + std::to_string(o.experts) +
                   " experts; use 1 to " + std::to_string(o.experts));
  WEFT_REQUIRE(o.top_k > 1 || o.weights == RouterWeights::kOverAll,
               "Router: with one chosen expert the weight is always 1, so the router cannot learn; "
               "with top_k = 1 use RouterWeights::kOverAll");
  WEFT_REQUIRE(o.capacity_factor >= 0 && std::isfinite(o.capacity_factor),
               "Router: capacity_factor must be at least 0 (0: no limit)");
  WEFT_REQUIRE(o.jitter >= 0 && o.jitter < 1,
               "Router: jitter must be in [0, 1), not " + std::to_string(o.jitter));
}

// Returns which of the choices [groups, tokens, k] fit into the capacity (bool). The position of a
// choice is the number of earlier choices of the same group and expert, counted by a stable sort.
at::Tensor within_capacity(const at::Tensor& choices, const RouterOptions& o) {
  const std::int64_t groups = choices.size(0), tokens = choices.size(1), k = choices.size(2);
  const std::int64_t slots = o.experts * groups;
  const double share =
      o.capacity_factor * static_cast<double>(k * tokens) / static_cast<double>(o.experts);
  const auto capacity = static_cast<std::int64_t>(
      std::max(1.0, std::ceil(std::min(share, static_cast<double>(tokens)))));
  const at::Tensor group = at::arange(groups, choices.options()).view({groups, 1, 1});
  // First choices before second ones.
  const at::Tensor slot = (choices.transpose(1, 2) + group * o.experts).reshape({-1});
  const at::Tensor order = at::argsort(slot, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor counts = at::bincount(slot, {}, slots), starts = counts.cumsum(0) - counts;
  at::Tensor place = at::empty_like(slot);
  place.index_copy_(0, order,
                    at::arange(slot.numel(), slot.options()) -
                        starts.index_select(0, slot.index_select(0, order)));
  return place.lt(capacity).view({groups, k, tokens}).transpose(1, 2);
}

}  // namespace

Routing route(const at::Tensor& logits, const RouterOptions& o, const ContextParallel& cp) {
  require(o);
  WEFT_REQUIRE(logits.dim() >= 2 && logits.size(-1) == o.experts,
               "route: logits must be [..., tokens, " + std::to_string(o.experts) + "]");
  const at::Tensor flat = logits.reshape({-1, o.experts});
  Routing r;
  r.experts = std::get<1>(flat.detach().sort(/*stable=*/true, -1, /*descending=*/true))
                  .narrow(1, 0, o.top_k)
                  .contiguous();
  r.probabilities = flat.softmax(-1);
  r.weights = o.weights == RouterWeights::kOverAll ? r.probabilities.gather(1, r.experts)
                                                   : flat.gather(1, r.experts).softmax(-1);
  r.z = flat.logsumexp(-1).square();
  if (o.capacity_factor > 0) {
    const std::int64_t tokens = logits.size(-2),
                       groups = c10::multiply_integers(logits.sizes().slice(0, logits.dim() - 2));
    at::Tensor choices = r.experts.view({groups, tokens, o.top_k});
    const bool divided = cp.size() > 1 && groups > 0;  // otherwise no rank has a token
    if (divided) choices = cp.whole(choices.to(at::kInt), 1).to(at::kLong);
    const at::Tensor kept = within_capacity(choices, o);
    r.kept = (divided ? cp.part(kept, 1) : kept).reshape({-1, o.top_k});
  }
  return r;
}

RouterImpl::RouterImpl(RouterOptions options_, TensorParallel tp, ContextParallel cp)
    : options(options_), tp_(std::move(tp)), cp_(std::move(cp)) {
  require(options);
  RouterImpl::reset();
}

void RouterImpl::reset() {
  weight = register_parameter(
      "weight", internal::draw({options.experts, options.width}, options.normal, tp_));
}

at::Tensor RouterImpl::jittered(const at::Tensor& x) const {
  const SequenceLayout layout = cp_.layout_of_part(x.size(-2));
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[sizes.size() - 2] = layout.whole;
  const auto [seed, draw] = tp_.next_draw();
  Random random(seed, kStream, draw);
  at::Tensor factors = at::empty(sizes, at::kFloat);
  auto* const values = factors.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < factors.numel(); ++i)
    values[i] = 1 + static_cast<float>(options.jitter) * (2 * random.uniform_float() - 1);
  return x * cp_.part(factors, -2).to(x.options());
}

Routing RouterImpl::forward(const at::Tensor& x) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor seen = x.to(type);
  if (is_training() && options.jitter > 0) seen = jittered(seen);
  return route(torch::linear(seen, weight.to(type)), options, cp_);
}

}  // namespace weft::parallel
