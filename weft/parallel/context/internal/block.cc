#include "weft/parallel/context/internal/block.h"

#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

namespace weft::parallel::internal {
namespace {

constexpr std::int64_t kStrip = 256;  // rows of a mask
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rows [begin, begin + count) of a block, and its first `keys`.
struct Strip {
  std::int64_t begin = 0, count = 0, keys = 0;
  bool causal = false;  // by the kernel
  at::Tensor sees;      // bool [batch, count, keys]; undefined: all, or what causal leaves
  at::Tensor mask;      // 0 or -infinity, [batch, 1, count, keys], in q's type
};

// The strips in which there is something to see.
void each_strip(const Block& block, const std::function<void(const Strip&)>& fn) {
  const std::int64_t n = block.q.size(2), m = block.k.size(2);
  if (n == 0 || m == 0) return;
  if (!block.q_documents.defined()) return fn({0, n, m, block.causal, {}, {}});
  for (std::int64_t begin = 0; begin < n; begin += kStrip) {
    Strip strip{begin, std::min(kStrip, n - begin), m, false, {}, {}};
    if (block.causal) strip.keys = begin + strip.count;
    strip.sees = block.q_documents.narrow(1, begin, strip.count).unsqueeze(2).eq(block.k_documents.narrow(1, 0, strip.keys).unsqueeze(1));
    if (block.causal) strip.sees = strip.sees.logical_and_(torch::ones({strip.count, strip.keys}, torch::kBool).tril(begin));
    if (!strip.sees.any().item<bool>()) continue;
    if (strip.sees.all().item<bool>()) {
      strip.sees = at::Tensor();
    } else {
      strip.mask = at::zeros(strip.sees.sizes(), block.q.options()).masked_fill_(strip.sees.logical_not(), -kInfinity).unsqueeze(1);
    }
    fn(strip);
  }
}

std::optional<at::Tensor> given(const at::Tensor& mask) { return mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt; }

std::pair<at::Tensor, at::Tensor> attend(const Block& block, const Strip& strip) {
  auto [out, lse] =
      at::_scaled_dot_product_flash_attention_for_cpu(block.q.narrow(2, strip.begin, strip.count), block.k.narrow(2, 0, strip.keys),
                                                      block.v.narrow(2, 0, strip.keys), 0.0, strip.causal, given(strip.mask), block.scale);
  // The kernel gives 0 for the logarithm of no sum.
  if (strip.sees.defined()) lse = lse.masked_fill(strip.sees.any(-1).logical_not_().unsqueeze(1), -kInfinity);
  return {out, lse};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> attend(const Block& block) {
  if (!block.q_documents.defined() && block.q.size(2) > 0 && block.k.size(2) > 0) {
    return attend(block, {0, block.q.size(2), block.k.size(2), block.causal, {}, {}});
  }
  const at::Tensor out = at::zeros(block.q.sizes(), block.q.options());
  const at::Tensor lse = at::full(block.q.sizes().slice(0, 3), -kInfinity, out.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  each_strip(block, [&](const Strip& strip) {
    const auto [o, l] = attend(block, strip);
    out.narrow(2, strip.begin, strip.count).copy_(o);
    lse.narrow(2, strip.begin, strip.count).copy_(l);
  });
  return {out, lse};
}

void add_gradients(const Block& block, const Joined& joined, const Gradients& to) {
  each_strip(block, [&](const Strip& s) {
    const auto rows = [&](const at::Tensor& x) { return x.narrow(2, s.begin, s.count); };
    const auto keys = [&](const at::Tensor& x) { return x.narrow(2, 0, s.keys); };
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(rows(joined.dout), rows(block.q), keys(block.k),
                                                                                       keys(block.v), rows(joined.out), rows(joined.lse),
                                                                                       0.0, s.causal, given(s.mask), block.scale);
    rows(to.dq).add_(dq);
    keys(to.dk).add_(dk);
    keys(to.dv).add_(dv);
  });
}

void join(at::Tensor& out, at::Tensor& lse, const std::pair<at::Tensor, at::Tensor>& block) {
  const at::Tensor& further = block.second;
  // exp(further) / (exp(lse) + exp(further)); 0 where the block has nothing to see.
  out.lerp_(block.first.to(out.scalar_type()), torch::sigmoid(further - lse).unsqueeze(-1));
  lse.copy_(torch::logaddexp(lse, further));
}

}  // namespace weft::parallel::internal
