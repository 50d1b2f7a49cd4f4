// The flat tensor of a bucket has the gradients of its parameters, and then a mark for each of
// them:
//
//   wire   | gradient 0 | gradient 1 | … | mark 0 | mark 1 | … |
//
// A rank sends its gradient times its weight and a mark of 1, or zeros and a mark of 0. The sum of
// a mark is above zero if any rank has a gradient. So all ranks know without another message which
// parameters were used. A codec would round the marks, so they then travel apart and uncompressed.
// With devices they travel apart through host memory, so that reading them does not wait for a
// device.
//
// Order: all ranks launch all buckets in one order, and collect them in that order. A codec with
// several rounds starts a round only after the one before. advance_all() takes one round of all
// buckets at a time, so the links carry all of them together.
//
// Memory: `wire` exists once for each bucket and is written again in each step. So sums must be
// used before the next launch() of their bucket. There is no lock: one thread at a time calls it,
// that of backward() or of step().
#include "weft/engine/internal/buckets.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/engine/internal/index.h"
#include "weft/engine/internal/stopwatch.h"
#include "weft/engine/internal/unit.h"

namespace weft::engine::internal {

template <class Visit>
void Buckets::each_exchange(const Visit& visit) const {
  for (const auto& flats : flats_) {
    for (const Flat& flat : flats) {
      visit(*flat.exchange);
    }
  }
}

Buckets::Buckets(Context context)
    : group_(std::move(context.group)),
      params_(std::move(context.params)),
      times_(context.times),
      check_(context.check),
      devices_(context.devices),
      alone_(context.devices && group_.size() == 1) {}

void Buckets::reset(const std::vector<std::vector<int>>& buckets) {
  flats_.clear();
  under_way_.assign(buckets.size(), false);
  for (const auto& bucket : buckets) add(bucket);
}

void Buckets::add(const std::vector<int>& bucket) {
  std::uint32_t id = flats_.empty() ? 0 : flats_.back().back().id + 1;
  std::vector<Flat> flats;
  std::vector<std::int64_t> lengths;
  for (int param : bucket) {
    const auto type = params_[index(param)].scalar_type();
    auto found = std::find_if(flats.begin(), flats.end(),
                              [&](const Flat& flat) { return flat.type == type; });
    if (found == flats.end()) {
      found = flats.insert(flats.end(), Flat{type, {}, {}, {}, {}, id++, nullptr, nullptr});
      lengths.push_back(0);
    }
    auto& length = lengths[static_cast<std::size_t>(found - flats.begin())];
    found->places.emplace_back(param, length);
    length += params_[index(param)].numel();
  }
  for (std::size_t i = 0; i < flats.size(); ++i) {
    Flat& flat = flats[i];
    const auto marks = static_cast<std::int64_t>(flat.places.size());
    flat.exchange = std::make_unique<CodecExchange>(group_);
    if (devices_) {
      const auto& like = params_[index(flat.places[0].first)];
      flat.gradients = at::empty({alone_ ? 0 : lengths[i]}, like.options().requires_grad(false));
      flat.marks = at::zeros({marks}, at::kFloat);
      flat.marks_exchange = std::make_unique<CodecExchange>(group_);
      continue;
    }
    flat.wire = at::zeros({lengths[i] + marks}, flat.type);
    flat.gradients = flat.wire.narrow(0, 0, lengths[i]);
    flat.marks = flat.wire.narrow(0, lengths[i], marks);
  }
  flats_.push_back(std::move(flats));
}

void Buckets::use_codec(const compress::Spec& spec, const compress::Momentum& momentum) {
  several_rounds_ = false;
  if (devices_) return;
  for (auto& flats : flats_) {
    for (Flat& flat : flats) {
      flat.exchange = std::make_unique<CodecExchange>(group_);
      flat.marks_exchange.reset();
      if (spec.kind == compress::Kind::kNone || flat.type != at::kFloat) continue;
      compress::Unit unit = unit_of(flat);
      unit.momentum = momentum;
      flat.exchange = std::make_unique<CodecExchange>(group_, spec, unit);
      flat.marks_exchange = std::make_unique<CodecExchange>(group_);
      several_rounds_ = several_rounds_ || flat.exchange->several_rounds();
    }
  }
}

bool Buckets::collects_by_collectives() const {
  bool any = false;
  each_exchange([&](const CodecExchange& exchange) { any = any || exchange.has_codec(); });
  return any && (several_rounds_ || group_.split() != nullptr);
}

void Buckets::commit() {
  each_exchange([](CodecExchange& exchange) { exchange.commit(); });
}

void Buckets::rollback() {
  each_exchange([](CodecExchange& exchange) { exchange.rollback(); });
}

bool Buckets::is_in_range() const {
  bool all = true;
  each_exchange([&](const CodecExchange& exchange) { all = all && exchange.is_in_range(); });
  return all;
}

void Buckets::launch(int bucket, std::int64_t step, double weight) {
  const at::NoGradGuard guard;
  const Stopwatch watch(times_->work, "update", "pack gradients");
  if (alone_) return check_alone(bucket);
  under_way_[index(bucket)] = true;
  advanced_ = false;
  for (Flat& flat : flats_[index(bucket)]) {
    fill(flat, weight);
    flat.exchange->start(flat.marks_exchange ? flat.gradients : flat.wire, step);
    if (flat.marks_exchange) flat.marks_exchange->start(flat.marks, step);
  }
}

void Buckets::check_alone(int bucket) const {
  for (const Flat& flat : flats_[index(bucket)]) {
    for (const auto& [param, first] : flat.places) {
      at::Tensor& grad = params_[index(param)].mutable_grad();
      // Not in place, since backward may still read this memory for another gradient.
      if (grad.defined() && check_ != nullptr && !check_->look(param, grad))
        grad = at::zeros_like(grad);
    }
  }
}

void Buckets::fill(Flat& flat, double weight) const {
  for (std::size_t place = 0; place < flat.places.size(); ++place) {
    const auto& [param, first] = flat.places[place];
    at::Tensor slot = flat.gradients.narrow(0, first, params_[index(param)].numel());
    const at::Tensor& grad = params_[index(param)].grad();
    // The mark is 1 also for a gradient that is not finite, although zeros take its place: the
    // parameter was used, and the check reports it. Zeros keep the memory of codecs finite.
    flat.marks.select(0, static_cast<std::int64_t>(place)).fill_(grad.defined() ? 1 : 0);
    put_gradient(slot, param, grad, weight, check_);
  }
}

void Buckets::collect(int bucket) {
  if (!under_way_[index(bucket)]) return;
  // The first collect() of a step waits for the rounds of all buckets.
  if (several_rounds_ && !advanced_) advance_all();
  for (Flat& flat : flats_[index(bucket)]) {
    while (advance(*flat.exchange)) {
    }
    flat.exchange->finish();
    if (flat.marks_exchange) advance(*flat.marks_exchange);
  }
  under_way_[index(bucket)] = false;
}

// If codecs have several rounds, the rounds of all buckets advance together.
void Buckets::advance_all() {
  for (bool more = true; more;) {
    more = false;
    each_exchange([&](CodecExchange& exchange) {
      more = (exchange.has_codec() && advance(exchange)) || more;
    });
  }
  advanced_ = true;
}

bool Buckets::advance(CodecExchange& exchange) {
  {
    const Stopwatch watch(times_->wait, "wait", "peers");
    exchange.await();
    if (!exchange.has_codec()) return exchange.advance();
  }
  const Stopwatch watch(times_->work, "update", "decode gradients");
  return exchange.advance();
}

void Buckets::each_sum(int bucket, const std::function<void(int, const at::Tensor&)>& visit) const {
  for (const Flat& flat : flats_[index(bucket)]) {
    if (alone_) {
      for (const auto& [param, first] : flat.places) {
        const at::Tensor& grad = params_[index(param)].grad();
        if (grad.defined()) visit(param, grad.to_dense().contiguous());
      }
      continue;
    }
    const at::Tensor marks = flat.marks.to(at::kFloat);
    const float* mark = marks.const_data_ptr<float>();
    for (const auto& [param, first] : flat.places) {
      const at::Tensor& like = params_[index(param)];
      if (*mark++ > 0)
        visit(param, flat.gradients.narrow(0, first, like.numel()).view(like.sizes()));
    }
  }
}

compress::Unit Buckets::unit_of(const Flat& flat) const {
  compress::Unit unit{.count = flat.gradients.numel(), .matrices = {}, .id = flat.id};
  for (const auto& [param, first] : flat.places) add_matrix(unit, first, params_[index(param)]);
  return unit;
}

std::vector<std::span<float>> Buckets::memory() {
  std::vector<std::span<float>> all;
  each_exchange([&](CodecExchange& exchange) {
    for (const auto& part : exchange.state()) all.push_back(part);
  });
  return all;
}

std::int64_t Buckets::numbers() const {
  std::int64_t sum = 0;
  for (const auto& flats : flats_) {
    for (const Flat& flat : flats) sum += flat.type == at::kFloat ? flat.gradients.numel() : 0;
  }
  return sum;
}

std::vector<compress::Unit> Buckets::units() const {
  std::vector<compress::Unit> units;
  for (const auto& flats : flats_) {
    for (const Flat& flat : flats) {
      if (flat.type == at::kFloat) units.push_back(CodecExchange::unit_for(group_, unit_of(flat)));
    }
  }
  return units;
}

double Buckets::share_sent() const {
  at::Tensor bytes = at::zeros({2}, at::kDouble);
  auto* const sums = bytes.data_ptr<double>();
  each_exchange([&](const CodecExchange& exchange) {
    const auto [sent, plain] = exchange.bytes_sent();
    sums[0] += static_cast<double>(sent);
    sums[1] += static_cast<double>(plain);
  });
  group_.all_reduce(bytes);
  return sums[1] > 0 ? sums[0] / sums[1] : 1.0;
}

}  // namespace weft::engine::internal
