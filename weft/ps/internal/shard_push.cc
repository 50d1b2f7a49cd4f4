// Pushes, rounds of a step, and pulls.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "weft/base/log.h"
#include "weft/kernels/reduce.h"
#include "weft/ps/internal/rows.h"
#include "weft/ps/internal/shard.h"

namespace weft::ps::internal {
namespace {

constexpr std::size_t kPad = 4;
// Elements that are compensated together: they stay in the first cache.
constexpr std::int64_t kChunk = 4096;
// Zheng et al. 2017, section 5: decay of the moving mean of g * g, and the guard against 0.
constexpr float kMeanSquareDecay = 0.95f, kMeanSquareGuard = 1e-7f;

// destination += source
void add(float* destination, const float* source, std::int64_t count) {
  void* const to = destination;
  const void* const from[] = {destination, source};
  kernels::reduce(&to, 1, from, 2, {.count = count});
}

}  // namespace

compress::Draw draw_of(std::uint64_t seed, const Request& push, std::uint32_t key) {
  return {.seed = seed,
          .step = static_cast<std::int64_t>(push.sequence),
          .unit = key,
          .rank = static_cast<int>(push.worker & 0xffffff)};
}

std::unique_ptr<compress::Codec> codec_of(const std::string& text) {
  const compress::Spec spec = compress::parse(text);
  return spec.kind == compress::Kind::kNone ? nullptr : compress::make_codec(spec);
}

std::string encode_values(const compress::Codec& codec, std::span<const float> values,
                          const compress::Draw& draw, float* residual) {
  std::vector<std::byte> wire;
  wire.reserve(static_cast<std::size_t>(codec.bytes(static_cast<std::int64_t>(values.size()))));
  codec.encode(values, draw, wire, residual);
  const auto size = static_cast<std::uint32_t>(wire.size());
  std::string bytes(sizeof size + (wire.size() + kPad - 1) / kPad * kPad, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  if (!wire.empty()) std::memcpy(bytes.data() + sizeof size, wire.data(), wire.size());
  return bytes;
}

void decode_values(const compress::Codec& codec, std::string_view& bytes,
                   const compress::Draw& draw, std::span<float> values) {
  std::uint32_t size = 0;
  if (bytes.size() < sizeof size) throw Error(Errc::kCorrupt, "too few bytes");
  std::memcpy(&size, bytes.data(), sizeof size);
  const std::size_t padded = (std::size_t{size} + kPad - 1) / kPad * kPad;
  if (bytes.size() - sizeof size < padded) throw Error(Errc::kCorrupt, "too few bytes");
  // The codec reads words, so its bytes must be aligned.
  std::vector<std::byte> words(padded);
  if (padded > 0) std::memcpy(words.data(), bytes.data() + sizeof size, padded);
  codec.add(std::span(words).first(size), draw, values);
  bytes.remove_prefix(sizeof size + padded);
}

const float* Shard::decode(const Request& push, const std::vector<std::uint32_t>& keys,
                           Answer& refusal) {
  const auto count = static_cast<std::size_t>(count_of(keys));
  const auto wrong = [&](const std::string& bytes) {
    refusal = invalid(
        "worker " + std::to_string(push.worker) + " pushed " + bytes + " for " +
        std::to_string(count) + " values of " +
        (keys.size() == 1 ? slots_[keys[0]].name : std::to_string(keys.size()) + " tensors") +
        "; the shape must be that of define(), and push_codec that of the server");
    return nullptr;
  };
  if (!push_codec_ || push.exact) {
    if (push.payload.size() != sizeof(float) * count)
      return wrong(std::to_string(push.payload.size()) + " bytes");
    if (reinterpret_cast<std::uintptr_t>(push.payload.data()) % alignof(float) == 0)
      return reinterpret_cast<const float*>(push.payload.data());
    scratch_.resize(count);
    if (count > 0) std::memcpy(scratch_.data(), push.payload.data(), push.payload.size());
    return scratch_.data();
  }
  scratch_.assign(count, 0);
  std::string_view rest = push.payload;
  std::span<float> out(scratch_);
  for (const std::uint32_t key : keys) {
    const auto here = static_cast<std::size_t>(slots_[key].count);
    try {
      decode_values(*push_codec_, rest, draw_of(push_seed_, push, key), out.first(here));
    } catch (const Error& error) {
      return wrong("malformed codes (" + error.message() + ")");
    }
    out = out.subspan(here);
  }
  if (!rest.empty()) return wrong("too many bytes");
  return scratch_.data();
}

Answer Shard::check_finite(const Request& push, const std::vector<std::uint32_t>& keys,
                           const float* values) const {
  for (const std::uint32_t key : keys) {
    const Slot& slot = slots_[key];
    if (!kernels::is_within(values, slot.count, std::numeric_limits<float>::max())) {
      const auto bad = std::find_if(values, values + slot.count,
                                    [](float value) { return !std::isfinite(value); });
      return invalid("worker " + std::to_string(push.worker) + " pushed " +
                     (std::isnan(*bad) ? "NaN" : "infinity") + " for " + slot.name + "[" +
                     std::to_string(slot.first + (bad - values)) + "] at its step " +
                     std::to_string(workers_.at(push.worker).clock) +
                     "; the push is refused, and nothing was changed");
    }
    values += slot.count;
  }
  return {};
}

// The pushes of a step make one update, with one learning rate.
Answer Shard::check_lr(const Request& push) const {
  const std::string who = "worker " + std::to_string(push.worker) + " pushed with a learning rate";
  if (!std::isfinite(push.lr)) return invalid(who + " that is not finite; nothing was changed");
  if (!options_.rule)
    return push.lr < 0 ? Answer{}
                       : invalid(who +
                                 ", and this parameter server adds deltas as they are; "
                                 "nothing was changed");
  const auto round = rounds_.find(workers_.at(push.worker).clock);
  if (options_.staleness != kSync || round == rounds_.end()) return {};
  const auto rate = [&](double lr) { return lr >= 0 ? lr : optim::lr_of(*options_.rule); };
  for (const auto& [other, buffered] : round->second) {
    if (rate(buffered.lr) == rate(push.lr)) continue;
    return invalid(who + " of " + json_number(rate(push.lr)) + " and worker " +
                   std::to_string(other) + " of " + json_number(rate(buffered.lr)) +
                   " for the same step; all workers of a step use one. Nothing was changed");
  }
  return {};
}

Answer Shard::push(const Request& command) {
  if (Answer refusal = check_keys(command); refusal.outcome != Outcome::kDone) return refusal;
  Answer refusal = check_lr(command);
  if (refusal.outcome != Outcome::kDone) return refusal;
  const std::vector<std::uint32_t> keys = keys_of(command);
  const float* values = decode(command, keys, refusal);
  if (refusal.outcome != Outcome::kDone) return refusal;
  if (refusal = check_finite(command, keys, values); refusal.outcome != Outcome::kDone)
    return refusal;
  Worker& worker = workers_.at(command.worker);
  if (options_.staleness == kSync) {
    const std::uint64_t bytes = sizeof(float) * static_cast<std::uint64_t>(count_of(keys));
    if (!has_room(bytes))
      return full("the push of worker " + std::to_string(command.worker) +
                      ", which waits for the other workers,",
                  bytes);
    used_bytes_ += bytes;
    rounds_[worker.clock][command.worker] = {
        keys, std::vector<float>(values, values + count_of(keys)), command.lr};
    tables_.advance(++worker.clock);
    finish_rounds();
    return {};
  }
  const std::uint64_t stale = version_ - std::min(version_, command.version);
  ++staleness_[std::min<std::uint64_t>(stale, staleness_.size() - 1)];
  for (const std::uint32_t key : keys) {
    update(slots_[key], values, command.lr, &worker);
    values += slots_[key].count;
  }
  tables_.advance(++worker.clock);
  ++version_;
  return {};
}

// Applies the pushes of each step that every worker has pushed for.
void Shard::finish_rounds() {
  while (!rounds_.empty()) {
    const auto least = slowest();
    if (least && rounds_.begin()->first >= *least) return;
    apply_round(rounds_.begin()->first, rounds_.begin()->second);
    rounds_.erase(rounds_.begin());
    ++version_;
  }
}

void Shard::apply_round(std::int64_t clock, std::map<std::uint32_t, Buffered>& round) {
  apply_rows(clock, round.size());
  const double lr = round.begin()->second.lr;
  for (std::uint32_t key = 0; key < slots_.size(); ++key) {
    std::vector<const void*> sources;  // in the order of the workers' numbers
    for (const auto& [number, push] : round) {
      const float* at = push.values.data();
      for (const std::uint32_t other : push.keys) {
        if (other == key) sources.push_back(at);
        at += slots_[other].count;
      }
    }
    if (sources.empty()) continue;
    scratch_.resize(static_cast<std::size_t>(slots_[key].count));
    void* const sum = scratch_.data();
    kernels::ReduceArgs args{.count = slots_[key].count};
    if (options_.rule) args.op = ReduceOp::kAvg;
    kernels::reduce(&sum, 1, sources.data(), static_cast<int>(sources.size()), args);
    update(slots_[key], scratch_.data(), lr, nullptr);
  }
  for (const auto& [number, push] : round) {
    staleness_[0] += 1;
    used_bytes_ -= sizeof(float) * push.values.size();
  }
}

// gradient + lambda g g (w - pulled), in place.
void Shard::compensate(const Slot& slot, std::int64_t begin, std::span<float> gradient,
                       const Worker& worker) {
  const auto offset = static_cast<std::size_t>(slot.offset + begin);
  const auto lambda = static_cast<float>(options_.delay_compensation);
  const float* const now = values_.data() + offset;
  const float* const then = worker.pulled.data() + offset;
  if (!options_.adaptive_compensation) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float g = gradient[i];
      gradient[i] = g + lambda * g * g * (now[i] - then[i]);
    }
    return;
  }
  float* const square = mean_square_.data() + offset;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float g = gradient[i];
    square[i] = kMeanSquareDecay * square[i] + (1 - kMeanSquareDecay) * g * g;
    gradient[i] = g + lambda / std::sqrt(square[i] + kMeanSquareGuard) * g * g * (now[i] - then[i]);
  }
}

// `worker`: whose gradient is compensated; none in a round.
void Shard::update(Slot& slot, const float* gradient, double lr, const Worker* worker) {
  ++slot.steps;
  float* const weight = values_.data() + slot.offset;
  if (!options_.rule) return add(weight, gradient, slot.count);
  optim::UpdateRule rule = *options_.rule;
  if (lr >= 0) optim::set_lr(rule, lr);
  const bool compensates = worker != nullptr && !worker->pulled.empty();
  const std::int64_t chunk = compensates ? kChunk : slot.count;
  std::array<float, kChunk> compensated;
  for (std::int64_t begin = 0; begin < slot.count; begin += chunk) {
    const std::int64_t count = std::min(chunk, slot.count - begin);
    const float* from = gradient + begin;
    if (compensates) {
      std::copy_n(from, count, compensated.begin());
      compensate(slot, begin, std::span(compensated).first(static_cast<std::size_t>(count)),
                 *worker);
      from = compensated.data();
    }
    optim::FlatStep<float> step{
        .weight = weight + begin, .gradient = from, .count = count, .step = slot.steps};
    for (std::size_t i = 0; i < states_.size(); ++i)
      step.state[i] = states_[i].data() + slot.offset + begin;
    optim::update_flat(rule, step);
  }
}

// The worker and this shard add the same codes to the same values. So the shard knows what the
// worker has, and its next difference has what the codec has left out.
Answer Shard::pull_delta(const Request& command) {
  if (!options_.pull_deltas)
    return invalid("this parameter server gives values, not differences; set pull_deltas");
  if (Answer refusal = check_keys(command); refusal.outcome != Outcome::kDone) return refusal;
  Worker& worker = workers_.at(command.worker);
  const bool whole = command.version != 0;
  Answer answer;
  for (const std::uint32_t key : keys_of(command)) {
    const auto count = static_cast<std::size_t>(slots_[key].count);
    const float* const now = values_.data() + slots_[key].offset;
    const std::span<float> has(worker.pulled.data() + slots_[key].offset, count);
    std::vector<float> sent(now, now + count);
    if (!whole)
      for (std::size_t i = 0; i < count; ++i) sent[i] -= has[i];
    if (whole || !delta_codec_) {
      answer.payload.append(reinterpret_cast<const char*>(sent.data()), sizeof(float) * count);
      for (std::size_t i = 0; i < count; ++i) has[i] = whole ? sent[i] : has[i] + sent[i];
      continue;
    }
    const compress::Draw draw = draw_of(delta_seed_, command, key);
    const std::string codes = encode_values(*delta_codec_, sent, draw, nullptr);
    answer.payload += codes;
    std::string_view rest(codes);
    decode_values(*delta_codec_, rest, draw, has);
  }
  return answer;
}

bool Shard::is_ready(const Request& pull) const {
  const auto worker = workers_.find(pull.worker);
  if (!is_defined_ || options_.staleness < 0 || worker == workers_.end()) return true;
  if (!worker->second.counts || worker->second.client != pull.client) return true;  // is refused
  return slowest().value_or(0) >= worker->second.clock - options_.staleness;
}

Answer Shard::check_pull(const Request& pull) const {
  if (!is_defined_) return invalid("the parameter server has no tensors yet; call define() first");
  Answer answer = pull.op == Op::kPullRows ? check_rows_pull(pull) : check_keys(pull);
  answer.version = version_;
  const auto worker = workers_.find(pull.worker);
  answer.clock = worker == workers_.end() ? 0 : worker->second.clock;
  answer.id = pull.id;
  return answer;
}

std::size_t Shard::pull_bytes(const Request& pull) const {
  if (pull.op == Op::kPullRows)
    return tables_.pull_bytes(pull.keys[0], RowKeys(pull.payload).keys().size());
  std::size_t bytes = 0;
  for (const std::uint32_t key : keys_of(pull)) {
    const std::int64_t count = slots_[key].count;
    bytes += pull_codec_ ? static_cast<std::size_t>(pull_codec_->bytes(count))
                         : sizeof(float) * static_cast<std::size_t>(count);
  }
  return bytes;
}

void Shard::read(const Request& pull, std::span<std::byte> out) const {
  if (pull.op == Op::kPullRows)
    return tables_.read(pull.keys[0], RowKeys(pull.payload).keys(), out);
  std::vector<std::byte> wire;
  for (const std::uint32_t key : keys_of(pull)) {
    const Slot& slot = slots_[key];
    const float* const values = values_.data() + slot.offset;
    const auto count = static_cast<std::size_t>(slot.count);
    std::size_t size = sizeof(float) * count;
    const void* from = values;
    if (pull_codec_) {
      wire.clear();
      pull_codec_->encode({values, count}, {}, wire, nullptr);
      from = wire.data();
      size = wire.size();
    }
    if (size > 0) std::memcpy(out.data(), from, size);
    out = out.subspan(size);
  }
}

}  // namespace weft::ps::internal
