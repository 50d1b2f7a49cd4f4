// How ranks of one host read each other's gradients. If weft's allocator made a gradient, it lies
// in memory that all ranks map, and a token names it. Other gradients are copied there: those of
// another memory, layout or type, and sparse ones. ShownGradients also copies those whose memory
// has other users, since sums may overwrite them. Nothing overwrites what InPlace shows.
//
// Order: put() writes the tokens, publish() stamps the unit with the number of the step. A peer
// reads tokens only after it has seen the owner's stamp. The stamp is a release store and is read
// by an acquire load. So tokens and gradients are plain memory.
//
// Lifetime: peers read without a lock, and a program may drop grad() at any time. So these classes
// hold the tensors until no peer reads them any more:
//   ShownGradients   until end(), after the last meeting of the step
//   InPlace          until release(), which waits until all ranks have read the unit
//   ShownBuffers     until the next show(); ranks meet in between
// Reads are within a Touch. A rank that ends early waits for the Touch of its peers
// (Ledger::leave()).
//
// Sums run over the ranks in ascending order, whichever rank computes them. So all ranks get the
// same bits.
#include "weft/engine/internal/in_place.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/comm/allocator.h"
#include "weft/engine/internal/stopwatch.h"
#include "weft/engine/internal/transport.h"

namespace weft::engine::internal {

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::kF32;
    case at::kDouble: return DType::kF64;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    default:
      throw Error(Errc::kInvalidArgument, std::string("parameters of type ") + c10::toString(type) +
                                              " are not supported by parallel training");
  }
}

Sources::Sources(const Ledger& ledger, const Stretch& at, DType dtype, const double* by_rank) {
  for (int peer = 0; peer < ledger.host().world(); ++peer) {
    const Ledger::Token token = ledger.token(peer, at.param);
    if (!has_gradient(token)) continue;
    if (first < 0) first = peer;
    if (peer != ledger.host().rank()) ++peers;
    data[count] =
        ledger.host().at(peer, token) + static_cast<std::size_t>(at.begin) * size_of(dtype);
    if (by_rank != nullptr) weights[count] = by_rank[peer];
    ++count;
  }
  args = {.dtype = dtype,
          .count = at.end - at.begin,
          .weights = by_rank != nullptr ? weights : nullptr};
}

void Sources::reduce_to_all(const Ledger& ledger, const Stretch& at) const {
  void* destinations[256];
  const int world = ledger.host().world();
  for (int peer = 0; peer < world; ++peer) {
    // Without the mark, the token names the zeros of a rank that did not use the parameter.
    const Ledger::Token token = ledger.token(peer, at.param) & ~kUnused;
    destinations[peer] =
        ledger.host().at(peer, token) + static_cast<std::size_t>(at.begin) * size_of(args.dtype);
  }
  reduce(destinations, world);
}

int first_with_gradient(const Ledger& ledger, int param) {
  for (int peer = 0; peer < ledger.host().world(); ++peer) {
    if (Sources::has_gradient(ledger.token(peer, param))) return peer;
  }
  return -1;
}

ShownGradients::ShownGradients(Ledger& ledger, std::vector<at::Tensor> params, GradientCheck* check)
    : ledger_(ledger),
      params_(std::move(params)),
      check_(check),
      shown_(params_.size()),
      copies_(params_.size()) {}

void ShownGradients::show(int param) {
  const at::Tensor& grad = params_[index(param)].grad();
  if (check_ != nullptr && !check_->look(param, grad)) ledger_.mark_not_finite();
  if (grad.is_sparse()) return show_copy(param, grad.to_dense(), 0);
  const bool plain =
      grad.is_contiguous() && grad.scalar_type() == params_[index(param)].scalar_type();
  const Ledger::Token token = plain ? ledger_.host().token(grad.data_ptr()) : net::Host::kNoToken;
  if (token == net::Host::kNoToken) return show_copy(param, grad, 0);
  // A sum may take the gradient's place, maybe while backward still runs. Autograd makes a view of
  // another tensor a gradient without a copy: in `x + p.view(…)`, the gradients of x and p are one
  // memory. When a hook runs, only grad() refers to the storage of an ordinary gradient.
  if (grad.storage().use_count() > 1) return show_copy(param, grad.clone(), 0);
  // Keeps the memory that the token names if the program drops grad().
  shown_[index(param)] = grad;
  ledger_.put(param, token);
}

void ShownGradients::show_zeros(int param) {
  show_copy(param, at::zeros_like(params_[index(param)]), Sources::kUnused);
}

void ShownGradients::show_copy(int param, const at::Tensor& gradient, Ledger::Token mark) {
  const at::NoGradGuard guard;
  at::Tensor& copy = copies_[index(param)];
  copy = comm::readable(ledger_.host(), gradient.detach().to(params_[index(param)].scalar_type()));
  ledger_.put(param, ledger_.host().token(copy.data_ptr()) | mark);
}

const at::Tensor& ShownGradients::of(int param) const {
  const at::Tensor& copy = copies_[index(param)];
  return copy.defined() ? copy : params_[index(param)].grad();
}

void ShownGradients::end(bool results, const std::vector<bool>& used) {
  const at::NoGradGuard guard;
  for (std::size_t param = 0; param < params_.size(); ++param) {
    shown_[param].reset();
    const at::Tensor copy = std::exchange(copies_[param], {});
    // The memory of `copy` may be the host's, which grad() may outlive.
    if (copy.defined() && results && used[param]) put_average(params_[param], copy);
  }
}

void ShownBuffers::show() {
  copies_.clear();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    copies_.push_back(comm::readable(ledger_.host(), buffers_[i].detach()));
    const int entry = first_ + static_cast<int>(i);
    ledger_.put(entry, ledger_.host().token(copies_.back().data_ptr()));
    ledger_.put(entry + static_cast<int>(buffers_.size()), copies_.back().nbytes());
  }
}

void ShownBuffers::take(int unit, double& waited) {
  if (buffers_.empty()) return;
  net::Host& host = ledger_.host();
  {
    const Stopwatch watch(waited, "wait", "peers");
    // missing() gives the first rank that is late. Another answer than 0 means that rank 0 is not.
    ledger_.wait([&] { return ledger_.missing(unit) != 0; }, [] { return 0; });
  }
  const at::NoGradGuard guard;
  ledger_.read_peers([&] {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const int entry = first_ + static_cast<int>(i);
      if (ledger_.token(0, entry + static_cast<int>(buffers_.size())) != buffers_[i].nbytes())
        continue;
      std::byte* const theirs = host.at(0, ledger_.token(0, entry));
      // Without a new version, as BufferBroadcast::finish().
      buffers_[i].variable_data().copy_(
          at::from_blob(theirs, buffers_[i].sizes(), buffers_[i].options()));
    }
  });
}

InPlace::InPlace(net::Host& host, const std::vector<Param>& params, const std::vector<Unit>& units,
                 std::chrono::nanoseconds timeout)
    : params_(params),
      units_(units),
      ledger_(host,
              {.params = static_cast<int>(params.size()), .units = static_cast<int>(units.size())},
              timeout),
      held_(params.size()) {}

InPlace::~InPlace() {
  // After an error, peers may still read the gradients that this rank holds.
  const auto is_held = [](const at::Tensor& tensor) { return tensor.defined(); };
  if (std::any_of(held_.begin(), held_.end(), is_held)) ledger_.leave();
}

void InPlace::put(int param, const at::Tensor& gradient) {
  held_[index(param)] = comm::readable(ledger_.host(), gradient);
}

void InPlace::publish(int unit) {
  for (const int param : units_[index(unit)].params) {
    const at::Tensor& gradient = held_[index(param)];
    ledger_.put(param, gradient.defined() ? ledger_.host().token(gradient.data_ptr())
                                          : net::Host::kNoToken);
  }
  ledger_.publish(unit);
}

void InPlace::reduce(int unit, at::Tensor& shard) {
  ledger_.host().check("step");
  ledger_.await_published(unit);
  const std::vector<double> weights = ledger_.weights();
  const Unit& u = units_[index(unit)];
  // Everything that no parameter fills becomes zero: padding, and parameters without a gradient.
  std::int64_t filled = 0;
  const auto zero_up_to = [&](std::int64_t end) {
    if (end > filled) shard.narrow(0, filled, end - filled).zero_();
  };
  ledger_.read_peers([&] {
    for (const Piece& piece : pieces_of(u, params_, ledger_.host().rank())) {
      const Sources sources(ledger_, {piece.param, piece.begin, piece.end}, dtype_of(u.type),
                            weights.data());
      if (sources.count == 0) continue;
      ledger_.host().count_moved(sources.peer_bytes());
      zero_up_to(piece.at);
      filled = piece.at + piece.count();
      sources.reduce(static_cast<std::byte*>(shard.data_ptr()) +
                     static_cast<std::size_t>(piece.at) * shard.element_size());
    }
  });
  zero_up_to(u.shard);
  ledger_.read(unit);
}

void InPlace::release(int unit) {
  ledger_.await_read(unit);
  for (const int param : units_[index(unit)].params) held_[index(param)].reset();
}

}  // namespace weft::engine::internal
