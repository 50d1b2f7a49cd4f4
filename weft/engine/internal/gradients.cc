// A unit of gradients goes through these steps. next_ is the unit to send next, from the last one
// down, in one order on all ranks.
//
//   ready()     a parameter's gradient comes: into the flat buffer (wire), or held in place
//   passed()    sends units from next_ down that are complete, or whose blocks are all passed
//   launch()    reduce-scatter of the wire; in place: publishes the unit
//   land()      the shard has the sum
//   pass_on()   starts the sum of the shard over the replicas
//   release()   in place: all ranks have read, so the gradients are freed
//   finish()    end of a backward: sends the rest, then starts the report (samples, use, digests)
//   settle()    the next backward or step: waits for all of it, adds the results to shards_
//
// Memory: while a unit is in transfer, the next one is filled. launch() first lands the units
// before, so a fast rank waits for slow peers instead of holding more units.
//
// Waiting: a function that backward calls may wait for a peer only if all ranks send gradients and
// gather weights in one common order (parameter_gathers.h). Otherwise may_wait_ is false. Then
// such functions only look whether a transfer is complete, and settle() waits for all.
//
// Weights: the samples of all ranks are known only from the report, after gradients have left. So,
// if gradients are weighted by samples, a rank sends them times samples / reference_. settle()
// multiplies the shard by reference_ / samples of all ranks. reference_ is a power of two that all
// ranks know.
//
// Threads: one thread calls it. With in-place sums, ranks are ordered by the ledger (ledger.cc).
#include "weft/engine/internal/gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/engine/internal/index.h"
#include "weft/engine/squares.h"

namespace weft::engine::internal {
namespace {

// Of a sparse gradient: the bytes of its values.
std::int64_t bytes_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  return static_cast<std::int64_t>((tensor.is_sparse() ? tensor._values() : tensor).nbytes());
}

}  // namespace

Gradients::Gradients(Context context)
    : context_(std::move(context)),
      position_of_(context_.params.size()),
      wires_(context_.units.size()),
      shards_(context_.units.size()),
      kept_(context_.params.size(), 0),
      report_(context_.params.size()) {
  for (std::size_t unit = 0; unit < context_.units.size(); ++unit) {
    const Unit& u = context_.units[unit];
    for (std::size_t place = 0; place < u.params.size(); ++place)
      position_of_[index(u.params[place])] = {static_cast<int>(unit), place};
    missing_.push_back(static_cast<int>(u.params.size()));
  }
  next_ = static_cast<int>(context_.units.size()) - 1;
  const auto& options = context_.options;
  if (net::Host* const host = context_.group.host();
      host != nullptr && options.weights != Weights::kPrivate && !options.reduce) {
    in_place_ =
        std::make_unique<InPlace>(*host, context_.params, context_.units, context_.group.timeout());
    held_.resize(context_.units.size(), 0);
  }
  // A guess for the first backward. Only types with a narrow range need it.
  reference_ =
      context_.options.reduce == at::kHalf || context_.options.compute == at::kHalf ? 128 : 1;
}

at::Tensor& Gradients::wire_of(int unit) {
  at::Tensor& wire = wires_[index(unit)];
  if (wire.defined()) return wire;
  const Unit& u = context_.units[index(unit)];
  wire = at::empty({u.elements}, at::TensorOptions(context_.options.reduce.value_or(u.type)));
  context_.meter.add(context_.meter.gradients, bytes_of(wire));
  return wire;
}

void Gradients::take(int param) {
  const at::NoGradGuard guard;
  const auto [unit, place] = position_of_[index(param)];
  at::Tensor& grad = context_.params[index(param)].tensor.mutable_grad();
  report_.add(param);
  if (in_place_) {
    if (context_.check != nullptr && !context_.check->look(param, grad))
      grad = at::zeros_like(grad);
    grad = grad.to_dense();  // the form in which it is held
    in_place_->put(param, grad);
    held_[index(unit)] += bytes_of(grad);
    context_.meter.add(context_.meter.gradients,
                       bytes_of(grad) - std::exchange(kept_[index(param)], 0));
    grad.reset();
    return;
  }
  const std::int64_t offset = context_.units[index(unit)].offsets[place];
  at::Tensor part = wire_of(unit).narrow(0, offset, grad.numel());
  put_gradient(part, param, grad, weight(), context_.check);
  grad.reset();
  context_.meter.add(context_.meter.gradients, -std::exchange(kept_[index(param)], 0));
}

int Gradients::ready(int param, bool travels) {
  const int unit = position_of_[index(param)].unit;
  if (travels) {
    take(param);
  } else if (kept_[index(param)] == 0) {
    kept_[index(param)] = bytes_of(context_.params[index(param)].tensor.grad());
    context_.meter.add(context_.meter.gradients, kept_[index(param)]);
  }
  const bool complete = --missing_[index(unit)] == 0;
  // Names no block as passed, so only complete units are sent.
  if (complete && travels) passed(std::numeric_limits<int>::max());
  return complete ? unit : -1;
}

void Gradients::passed(int block) {
  for (; next_ >= 0; --next_) {
    const Unit& unit = context_.units[index(next_)];
    if (!unit.trainable) continue;
    // Backward runs the blocks downwards, so the lowest block of a unit gives its last gradient.
    if (missing_[index(next_)] > 0 && unit.blocks[0] <= block) return;
    for (const int param : unit.params) {
      // Gradients that no_sync() kept, and that this backward has not reached.
      if (context_.params[index(param)].tensor.grad().defined()) take(param);
    }
    launch(next_);
  }
}

// The factor of this rank's gradients in the sum.
double Gradients::weight() const {
  switch (context_.options.average) {
    case ShardedOptions::Average::kByRanks:
      return 1.0 / (context_.group.size() *
                    (context_.options.replicas ? context_.options.replicas->size() : 1));
    case ShardedOptions::Average::kBySamples: return context_.samples.value() / reference_;
    default: return 1;
  }
}

// Zeroes the parameters without a gradient, and the padding after each parameter.
void Gradients::zero_rest(int unit) {
  const Unit& u = context_.units[index(unit)];
  at::Tensor& wire = wire_of(unit);
  for (std::size_t place = 0; place < u.params.size(); ++place) {
    const int param = u.params[place];
    const std::int64_t begin =
        u.offsets[place] + (report_.has(param) ? context_.params[index(param)].tensor.numel() : 0);
    const std::int64_t end = place + 1 < u.params.size() ? u.offsets[place + 1] : u.elements;
    if (end > begin) wire.narrow(0, begin, end - begin).zero_();
  }
}

// One unit is in transfer at a time, while the next one is filled. So slower peers limit how far
// this rank gets ahead, instead of its memory use growing.
void Gradients::land_earlier() {
  for (std::size_t i = 0; i < in_flight_.size(); ++i) {
    Flight& flight = in_flight_[i];
    const bool has_come = flight.work ? flight.work->isCompleted()
                                      : flight.is_held && in_place_->is_published(flight.unit);
    if (may_wait_ || has_come) land(flight);
    // Peers may read the previous unit until they have reached this point too.
    if (flight.is_held &&
        (may_wait_ ? i + 1 < in_flight_.size()
                   : flight.shard.defined() && in_place_->is_reduced(flight.unit)))
      release(flight);
  }
  if (may_wait_) pass_on();
}

// Shards that are complete are summed over the replicas while backward continues, in the order in
// which they were sent.
void Gradients::pass_on() {
  for (Flight& flight : in_flight_) {
    if (flight.is_passed_on) continue;
    if (flight.work || !flight.shard.defined()) return;
    context_.replicas.start(flight.unit, flight.shard);
    flight.is_passed_on = true;
  }
}

void Gradients::launch(int unit) {
  const Unit& u = context_.units[index(unit)];
  land_earlier();
  if (in_place_) {
    if (!std::exchange(began_, true)) in_place_->begin(weight());
    in_place_->publish(unit);
    in_flight_.push_back({unit, {}, {}, nullptr, true});
    if (may_wait_ && context_.options.prefetch == 0) release(in_flight_.back());
    return;
  }
  zero_rest(unit);
  at::Tensor wire = std::exchange(wire_of(unit), {});
  at::Tensor shard = at::empty({u.shard}, wire.options());
  context_.meter.add(context_.meter.gradients, bytes_of(shard));
  in_flight_.push_back({unit, wire, shard, context_.group.reduce_scatter_async(shard, wire)});
  if (may_wait_ && context_.options.prefetch == 0) land(in_flight_.back());
}

void Gradients::land(Flight& flight) {
  if (in_place_ && !flight.shard.defined()) {
    const Unit& u = context_.units[index(flight.unit)];
    flight.shard = at::empty({u.shard}, at::TensorOptions(u.type));
    context_.meter.add(context_.meter.gradients, bytes_of(flight.shard));
    in_place_->reduce(flight.unit, flight.shard);
  }
  if (!flight.work) return;
  flight.work->wait();
  context_.meter.add(context_.meter.gradients, -bytes_of(flight.wire));
  flight.wire.reset();
  flight.work.reset();
}

void Gradients::release(Flight& flight) {
  land(flight);
  if (!std::exchange(flight.is_held, false)) return;
  in_place_->release(flight.unit);
  context_.meter.add(context_.meter.gradients, -std::exchange(held_[index(flight.unit)], 0));
}

void Gradients::finish(bool travels) {
  for (std::size_t unit = 0; unit < missing_.size(); ++unit)
    missing_[unit] = static_cast<int>(context_.units[unit].params.size());
  if (!travels) return;
  passed(-1);
  next_ = static_cast<int>(context_.units.size()) - 1;
  began_ = false;
  const bool by_samples = context_.options.average == ShardedOptions::Average::kBySamples;
  const double samples = context_.samples.value();
  const std::uint32_t digest = context_.watch.digest(
      {.unknown_samples = by_samples && context_.samples.are_unknown(),
       .added = std::any_of(shards_.begin(), shards_.end(),
                            [](const at::Tensor& shard) { return shard.defined(); })});
  report_.send(context_.group,
               {.samples = samples,
                .digest = digest,
                .company = by_samples ? context_.company.value() : 0,
                .first_not_finite = context_.check != nullptr ? context_.check->first() : -1});
}

void Gradients::settle() {
  if (!report_.is_under_way()) return;
  for (Flight& flight : in_flight_) land(flight);
  // In this order, so that sums over the replicas run while this rank waits for its peers below.
  pass_on();
  for (Flight& flight : in_flight_) release(flight);
  const double samples = report_.await(context_.options.replicas);
  context_.replicas.finish();
  const bool by_samples = context_.options.average == ShardedOptions::Average::kBySamples;
  if (by_samples && !(samples > 0)) {
    throw Error(Errc::kInvalidArgument,
                "sharded: no rank has counted samples; call run(0, …) or set_samples() before "
                "backward(), or average by ranks");
  }
  report_.take();
  if (report_.are_apart()) {
    throw Error(Errc::kInvalidArgument, apart_text(std::nullopt, context_.params.front().name),
                {"step", context_.group.rank()});
  }
  for (Flight& flight : in_flight_) {
    at::Tensor& shard = shards_[index(flight.unit)];
    at::Tensor sum = flight.shard.to(context_.units[index(flight.unit)].master_type);
    // From here on it is the mean over the samples of all ranks, and may be added to earlier ones.
    if (by_samples && samples != reference_) sum.mul_(reference_ / samples);
    context_.meter.add(context_.meter.gradients,
                       -bytes_of(flight.shard) + (shard.defined() ? 0 : bytes_of(sum)));
    shard = shard.defined() ? shard.add_(sum) : sum;
  }
  in_flight_.clear();
  if (samples > 0) reference_ = std::exp2(std::round(std::log2(samples)));
}

void Gradients::scale(double factor) {
  if (factor == 1) return;
  for (at::Tensor& shard : shards_) {
    if (shard.defined()) shard.mul_(factor);
  }
}

void Gradients::each_piece(
    const std::function<void(const std::string&, const at::Tensor&)>& take) const {
  for (std::size_t unit = 0; unit < shards_.size(); ++unit) {
    if (!shards_[unit].defined()) continue;
    for (const Piece& piece :
         pieces_of(context_.units[unit], context_.params, context_.group.rank()))
      take(context_.params[index(piece.param)].name, piece.of(shards_[unit]));
  }
}

double Gradients::norm() const {
  double squares = 0;
  for (const at::Tensor& shard : shards_) {
    if (shard.defined()) squares += squares_of(shard);
  }
  at::Tensor sum = at::scalar_tensor(squares, at::kDouble);
  context_.group.all_reduce(sum);
  return std::sqrt(sum.item<double>());
}

void Gradients::clear() {
  settle();
  context_.replicas.rollback();
  for (at::Tensor& shard : shards_) {
    context_.meter.add(context_.meter.gradients, -bytes_of(shard));
    shard.reset();
  }
  report_.clear();
  if (context_.check != nullptr) context_.check->clear();
  for (std::size_t param = 0; param < kept_.size(); ++param) {
    context_.params[param].tensor.mutable_grad().reset();
    context_.meter.add(context_.meter.gradients, -std::exchange(kept_[param], 0));
  }
}

}  // namespace weft::engine::internal
