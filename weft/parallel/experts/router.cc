#include "weft/parallel/experts/router.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/parallel/experts/internal/initial.h"

namespace weft::parallel {
namespace {

constexpr std::uint32_t kStream = 0x6a697474;  // "jitt": no other part of weft draws from it

void require(const RouterOptions& o) {
  WEFT_REQUIRE(o.width > 0 && o.experts > 0, "Router: width and experts are at least 1");
  WEFT_REQUIRE(o.top_k >= 1 && o.top_k <= o.experts, "Router: top_k = " + std::to_string(o.top_k) + " of " + std::to_string(o.experts) +
                                                         " experts; use 1 to " + std::to_string(o.experts));
  WEFT_REQUIRE(
      o.top_k > 1 || o.weights == RouterWeights::kOverAll,
      "Router: over one chosen expert the weight is always 1, and the router learns nothing; with top_k = 1 use RouterWeights::kOverAll");
  WEFT_REQUIRE(o.capacity_factor >= 0 && std::isfinite(o.capacity_factor), "Router: capacity_factor is at least 0 (0: no limit)");
  WEFT_REQUIRE(o.jitter >= 0 && o.jitter < 1, "Router: jitter is in [0, 1), not " + std::to_string(o.jitter));
}

at::Tensor jittered(const at::Tensor& x, double jitter, const TensorParallel& tp) {
  const auto [seed, draw] = tp.next_draw();
  Random random(seed, kStream, draw);
  at::Tensor factors = at::empty(x.sizes(), at::kFloat);
  auto* const values = factors.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < factors.numel(); ++i) values[i] = 1 + static_cast<float>(jitter) * (2 * random.uniform_float() - 1);
  return x * factors.to(x.options());
}

// Which of the choices [groups, tokens, k] find a place: bool [groups · tokens, k]. A choice's place is the number of those of the same
// group and expert that come before it, counted by a stable sort.
at::Tensor within_capacity(const at::Tensor& choices, const RouterOptions& o) {
  const std::int64_t groups = choices.size(0), tokens = choices.size(1), k = choices.size(2);
  const std::int64_t slots = o.experts * groups;
  const double share = o.capacity_factor * static_cast<double>(k * tokens) / static_cast<double>(o.experts);
  const auto capacity = static_cast<std::int64_t>(std::max(1.0, std::ceil(std::min(share, static_cast<double>(tokens)))));
  const at::Tensor group = at::arange(groups, choices.options()).view({groups, 1, 1});
  const at::Tensor slot = (choices.transpose(1, 2) + group * o.experts).reshape({-1});  // first choices before second ones
  const at::Tensor order = at::argsort(slot, /*stable=*/true, 0, /*descending=*/false);
  const at::Tensor counts = at::bincount(slot, {}, slots), starts = counts.cumsum(0) - counts;
  at::Tensor place = at::empty_like(slot);
  place.index_copy_(0, order, at::arange(slot.numel(), slot.options()) - starts.index_select(0, slot.index_select(0, order)));
  return place.lt(capacity).view({groups, k, tokens}).transpose(1, 2).reshape({groups * tokens, k});
}

}  // namespace

Routing route(const at::Tensor& logits, const RouterOptions& o) {
  require(o);
  WEFT_REQUIRE(logits.dim() >= 2 && logits.size(-1) == o.experts, "route: logits are [..., tokens, " + std::to_string(o.experts) + "]");
  const at::Tensor flat = logits.reshape({-1, o.experts});
  Routing r;
  r.experts = std::get<1>(flat.detach().sort(/*stable=*/true, -1, /*descending=*/true)).narrow(1, 0, o.top_k).contiguous();
  r.probabilities = flat.softmax(-1);
  r.weights = o.weights == RouterWeights::kOverAll ? r.probabilities.gather(1, r.experts) : flat.gather(1, r.experts).softmax(-1);
  r.z = flat.logsumexp(-1).square();
  if (o.capacity_factor > 0) {
    const std::int64_t tokens = logits.size(-2), groups = tokens == 0 ? 0 : flat.size(0) / tokens;
    r.kept = within_capacity(r.experts.view({groups, tokens, o.top_k}), o);
  }
  return r;
}

RouterImpl::RouterImpl(RouterOptions options_, TensorParallel tp) : options(options_), tp_(std::move(tp)) {
  require(options);
  RouterImpl::reset();
}

void RouterImpl::reset() { weight = register_parameter("weight", internal::draw({options.experts, options.width}, options.normal, tp_)); }

Routing RouterImpl::forward(const at::Tensor& x) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor seen = x.to(type);
  if (is_training() && options.jitter > 0) seen = jittered(seen, options.jitter, tp_);
  return route(torch::linear(seen, weight.to(type)), options);
}

}  // namespace weft::parallel
