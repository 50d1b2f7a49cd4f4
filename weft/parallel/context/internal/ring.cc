#include "weft/parallel/context/internal/ring.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>
#include <vector>

#include "weft/parallel/context/internal/block.h"
#include "weft/parallel/context/internal/ring_rotation.h"

namespace weft::parallel::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Block block_of(const Ring& ring, int step, const at::Tensor& q, const KeysAndValues& kv) {
  const std::int64_t first = ring.first_query(step);
  const int from = ring.owner(ring.rank, step);
  Block block{q.narrow(2, first, q.size(2) - first), kv.first,          kv.second, {}, {},
              ring.options.causal && step == 0,      ring.options.scale};
  if (ring.options.dropout.p > 0) {
    block.dropped = {ring.options.dropout, ring.layout.whole,
                     ring.layout.positions(ring.rank).slice(0, first),
                     ring.layout.positions(from).narrow(0, 0, kv.first.size(2))};
  }
  if (ring.options.documents.defined()) {
    block.q_documents = ring.layout.part(ring.options.documents, 1, ring.rank).slice(1, first);
    block.k_documents =
        ring.layout.part(ring.options.documents, 1, from).narrow(1, 0, kv.first.size(2));
  }
  return block;
}

// The last dimension must be contiguous, and gradients may be expanded tensors.
at::Tensor dense(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

std::unique_ptr<RingRotation> rotation_of(const Ring& ring, const KeysAndValues& mine, Pass pass) {
  HostRing* const host = ring.cp.host_ring();
  return host == nullptr ? rotate_by_messages(ring, mine, pass)
                         : rotate_in_place(*host, ring, mine, pass);
}

std::pair<at::Tensor, at::Tensor> forward(const Ring& ring, const at::Tensor& q,
                                          const at::Tensor& k, const at::Tensor& v) {
  if (ring.ranks == 1) return attend(block_of(ring, 0, q, {k, v}));
  const auto rotation = rotation_of(ring, {k, v}, Pass::kForward);
  auto [out, lse] = attend(block_of(ring, 0, q, {k, v}));
  out = out.to(sum_type(q));
  for (int step = 1; step < ring.ranks; ++step) {
    const Block block = block_of(ring, step, q, rotation->next(step));
    const std::int64_t first = ring.first_query(step), rows = q.size(2) - first;
    at::Tensor o = out.narrow(2, first, rows), l = lse.narrow(2, first, rows);
    if (rows > 0 && block.k.size(2) > 0) join(o, l, attend(block));
  }
  rotation->finish();
  return {out.to(q.scalar_type()), lse};
}

// Returns dq and the gradients of this rank's keys and values, in the type of sums.
std::pair<at::Tensor, Pack> backward(const Ring& ring, const variable_list& saved,
                                     const at::Tensor& dout) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
  const at::Tensor dq = at::zeros(q.sizes(), q.options().dtype(sum_type(q)).requires_grad(false));
  const auto add = [&](int step, const KeysAndValues& kv, const Pack& to) {
    const std::int64_t first = ring.first_query(step);
    const auto late = [&](const at::Tensor& x) { return x.narrow(2, first, x.size(2) - first); };
    to.both.zero_();
    add_gradients(block_of(ring, step, q, kv), {late(dout), late(out), late(lse)},
                  {late(dq), to.k(), to.v()});
  };
  Pack own = Pack::like(k, k.size(2), sum_type(k));
  if (ring.ranks == 1) {
    add(0, {k, v}, own);
    return {dq, own};
  }
  const auto rotation = rotation_of(ring, {k, v}, Pass::kBackward);
  add(0, {k, v}, own);
  for (int step = 1; step < ring.ranks; ++step) {
    const KeysAndValues kv = rotation->next(step);
    const Pack found = Pack::like(k, kv.first.size(2), sum_type(k));
    add(step, kv, found);
    rotation->hand_on(step, found, own);
  }
  rotation->collect(own);
  rotation->finish();
  return {dq, own};
}

struct RingAttention final : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const c10::intrusive_ptr<Ring>& ring) {
    const auto [out, lse] = internal::forward(*ring, dense(q), dense(k), dense(v));
    context->save_for_backward({q, k, v, out, lse});
    context->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return out;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    WEFT_REQUIRE(!at::GradMode::is_enabled(),
                 "context_attention: backward of backward (create_graph) is not supported");
    const auto ring =
        c10::static_intrusive_pointer_cast<Ring>(context->saved_data["ring"].toCapsule());
    variable_list saved = context->get_saved_variables();
    for (int i = 0; i < 3; ++i)
      saved[static_cast<std::size_t>(i)] = dense(saved[static_cast<std::size_t>(i)]);
    const auto [dq, dkv] = internal::backward(*ring, saved, dense(gradients[0]));
    const at::ScalarType type = saved[0].scalar_type();
    return {dq.to(type), dkv.k().to(type), dkv.v().to(type), {}};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SequenceLayout& layout, const ContextAttentionOptions& options,
                          const ContextParallel& cp) {
  return RingAttention::apply(q, k, v, c10::make_intrusive<Ring>(layout, options, cp));
}

}  // namespace weft::parallel::internal
