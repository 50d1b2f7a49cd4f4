#include "weft/parallel/context/internal/ring.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "weft/parallel/context/internal/block.h"
#include "weft/parallel/context/internal/messages.h"

namespace weft::parallel::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Values that backward needs besides tensors; one rank's view of the ring.
struct Ring final : torch::CustomClassHolder {
  Ring(const SequenceLayout& layout_, ContextAttentionOptions options_, const ContextParallel& cp_)
      : layout(layout_), options(std::move(options_)), cp(cp_), rank(cp.rank()), ranks(cp.size()) {}

  SequenceLayout layout;
  ContextAttentionOptions options;
  ContextParallel cp;
  int rank, ranks;

  int down() const { return (rank + ranks - 1) % ranks; }
  int up() const { return (rank + 1) % ranks; }
  // The rank whose keys this rank uses in a step, and their number: higher ranks do not use late
  // chunks.
  int owner(int who, int step) const { return (who + step) % ranks; }
  std::int64_t keys(int who, int step) const {
    const int from = owner(who, step);
    return options.causal && from < who ? layout.low(from).size : layout.length(from);
  }
  // This rank's queries with visible keys in the step: all, or those of its late chunk, [first,
  // end).
  std::int64_t first_query(int step) const {
    return options.causal && owner(rank, step) > rank ? layout.low(rank).size : 0;
  }
};

// Keys and values (or their gradients) of one rank: [positions, 2, batch, kv_heads, width], so that
// the first positions are one message.
struct Pack {
  at::Tensor both;

  static Pack like(const at::Tensor& k, std::int64_t positions, at::ScalarType type) {
    return {at::empty({positions, 2, k.size(0), k.size(1), k.size(3)},
                      k.options().dtype(type).requires_grad(false))};
  }
  static Pack of(const at::Tensor& k, const at::Tensor& v) {
    Pack pack = like(k, k.size(2), k.scalar_type());
    pack.k().copy_(k);
    pack.v().copy_(v);
    return pack;
  }
  // [batch, kv_heads, positions, width]
  at::Tensor k() const { return both.select(1, 0).permute({1, 2, 0, 3}); }
  at::Tensor v() const { return both.select(1, 1).permute({1, 2, 0, 3}); }
};

// Passes the keys down the ring. Call at(step) for 1, 2, …; the next keys are in transfer
// meanwhile.
class Travel {
 public:
  Travel(const Ring& ring, Messages& messages, const at::Tensor& k, const at::Tensor& v)
      : ring_(ring), messages_(messages) {
    here_ = Pack::of(k, v);
    next(0);
  }
  const Pack& at(int step) {
    messages_.wait(coming_work_);
    here_ = std::move(coming_);
    next(step);
    return here_;
  }

 private:
  void next(int step) {
    if (step + 1 >= ring_.ranks) return;
    // First the receive: what comes before it is copied once more.
    coming_ = Pack::like(here_.k(), ring_.keys(ring_.rank, step + 1), here_.both.scalar_type());
    coming_work_ = messages_.receive(coming_.both, ring_.up(), Kind::kKeys);
    messages_.send(here_.both.narrow(0, 0, ring_.keys(ring_.down(), step + 1)), ring_.down(),
                   Kind::kKeys);
  }

  const Ring& ring_;
  Messages& messages_;
  Pack here_, coming_;
  Group::Work coming_work_;
};

Block block_of(const Ring& ring, int step, const at::Tensor& q,
               const std::pair<at::Tensor, at::Tensor>& kv) {
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

std::pair<at::Tensor, at::Tensor> forward(const Ring& ring, const at::Tensor& q,
                                          const at::Tensor& k, const at::Tensor& v) {
  if (ring.ranks == 1) return attend(block_of(ring, 0, q, {k, v}));
  Messages messages(ring.cp.group());
  Travel travel(ring, messages, k, v);
  auto [out, lse] = attend(block_of(ring, 0, q, {k, v}));
  out = out.to(sum_type(q));
  for (int step = 1; step < ring.ranks; ++step) {
    const Pack& pack = travel.at(step);
    const Block block = block_of(ring, step, q, {pack.k(), pack.v()});
    const std::int64_t first = ring.first_query(step), rows = q.size(2) - first;
    at::Tensor o = out.narrow(2, first, rows), l = lse.narrow(2, first, rows);
    if (rows > 0 && block.k.size(2) > 0) join(o, l, attend(block));
  }
  messages.finish();
  return {out.to(q.scalar_type()), lse};
}

// Returns the gradients of the keys to their owners, one step behind the keys.
class Homeward {
 public:
  Homeward(const Ring& ring, Messages& messages) : ring_(ring), messages_(messages) {}

  // Before the computation of a step: starts to receive the gradients that other ranks have begun.
  void expect(int step, const Pack& like) {
    begun_ = {};
    if (step < 2) return;
    begun_ = Pack::like(like.k(), ring_.keys(ring_.rank, step), sum_type(like.both));
    begun_work_ = messages_.receive(begun_.both, ring_.up(), Kind::kGradients);
  }
  // After it: adds this rank's part and sends them on. Rank 0, the last to use late chunks, returns
  // them to their owners.
  void hand_on(int step, const at::Tensor& mine) {
    if (begun_.both.defined()) {
      messages_.wait(begun_work_);
      mine.add_(begun_.both);
    }
    const int home = ring_.owner(ring_.rank, step);
    if (ring_.options.causal && ring_.rank == 0) {
      const std::int64_t low = ring_.layout.low(home).size;
      messages_.send(mine.narrow(0, 0, low), ring_.down(), Kind::kGradients);
      messages_.send(mine.narrow(0, low, mine.size(0) - low), home, Kind::kLateGradients);
    } else {
      messages_.send(mine, ring_.down(), Kind::kGradients);
    }
  }
  // Adds the gradients of this rank's own keys from the other ranks.
  void collect(const Pack& own) {
    const std::int64_t all = own.both.size(0),
                       low = ring_.options.causal ? ring_.layout.low(ring_.rank).size : all;
    const at::Tensor found = at::empty_like(own.both);
    const auto early = messages_.receive(found.narrow(0, 0, low), ring_.up(), Kind::kGradients);
    const std::int64_t late = ring_.rank == 0 ? 0 : all - low;
    const auto last = messages_.receive(found.narrow(0, low, late), 0, Kind::kLateGradients);
    messages_.wait(early);
    messages_.wait(last);
    own.both.narrow(0, 0, low + late).add_(found.narrow(0, 0, low + late));
  }

 private:
  const Ring& ring_;
  Messages& messages_;
  Pack begun_;
  Group::Work begun_work_;
};

// Returns dq and the gradients of this rank's keys and values, in the type of sums.
std::pair<at::Tensor, Pack> backward(const Ring& ring, const variable_list& saved,
                                     const at::Tensor& dout) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &lse = saved[4];
  const at::Tensor dq = at::zeros(q.sizes(), q.options().dtype(sum_type(q)).requires_grad(false));
  const auto add = [&](int step, const std::pair<at::Tensor, at::Tensor>& kv, const Pack& to) {
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
  Messages messages(ring.cp.group());
  Travel travel(ring, messages, k, v);
  Homeward homeward(ring, messages);
  add(0, {k, v}, own);
  for (int step = 1; step < ring.ranks; ++step) {
    const Pack& pack = travel.at(step);
    homeward.expect(step, pack);
    const Pack found = Pack::like(pack.k(), pack.both.size(0), sum_type(k));
    add(step, {pack.k(), pack.v()}, found);
    homeward.hand_on(step, found.both);
  }
  homeward.collect(own);
  messages.finish();
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
