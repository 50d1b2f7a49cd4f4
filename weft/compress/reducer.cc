#include "weft/compress/reducer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "weft/base/error.h"
#include "weft/compress/internal/codecs.h"
#include "weft/compress/internal/staged.h"
#include "weft/kernels/reduce.h"

namespace weft::compress {

std::int64_t shard_length(std::int64_t count, int world) {
  // A multiple of the usual block sizes, so that a scale belongs to one shard.
  constexpr std::int64_t kGrain = 1024;
  return internal::round_up((count + world - 1) / world, kGrain);
}

namespace {

enum class Exchange { kPlain, kSum, kGather, kSharded };

// An all-reduce of 16-bit floats rounds their sum again. With delta, the state that the ranks share
// would keep each of these errors, since no later code corrects it.
bool can_sum(const Codec& codec, const Spec& spec) {
  const auto type = codec.sums();
  return type && (spec.memory != Memory::kDelta || *type == DType::kF32);
}

// Chooses the exchange with the fewest bytes; the same on all ranks.
Exchange choose(const Codec& codec, const Spec& spec, const Unit& unit) {
  const std::int64_t count = unit.count;
  const int world = unit.world;
  if (world <= 1 || count == 0) return Exchange::kPlain;
  const std::int64_t plain = internal::all_reduce_bytes(4 * count, world);
  if (can_sum(codec, spec))
    return internal::all_reduce_bytes(codec.bytes(count), world) < plain ? Exchange::kSum
                                                                         : Exchange::kPlain;
  const std::int64_t gather = (world - 1) * codec.bytes(count);
  const std::int64_t sharded = 2 * (world - 1) * internal::shard_bytes(spec, unit);
  // The number of values above a threshold is not known beforehand, so its bound is that of no
  // compression.
  if (codec.fixed() && std::min(gather, sharded) >= plain) return Exchange::kPlain;
  return sharded < gather ? Exchange::kSharded : Exchange::kGather;
}

}  // namespace

std::unique_ptr<Reducer> make_reducer(const Spec& spec, const Unit& unit) {
  WEFT_REQUIRE(spec.kind != Kind::kAuto,
               "make_reducer: \"auto\" has to be decided first; see choose.h");
  WEFT_REQUIRE(unit.count >= 0 && unit.world >= 1 && unit.rank >= 0 && unit.rank < unit.world,
               "make_reducer: the rank must be one of the world's and the count not negative");
  if (spec.kind == Kind::kNone || unit.world == 1) return internal::make_plain(spec, unit);
  if (spec.kind == Kind::kPowerSgd) {
    auto low_rank = internal::make_low_rank(spec, unit);
    return low_rank ? std::move(low_rank) : internal::make_plain(spec, unit);
  }
  const auto codec = internal::make_codec(spec, unit, {0, unit.count});
  switch (choose(*codec, spec, unit)) {
    case Exchange::kPlain: return internal::make_plain(spec, unit);
    case Exchange::kSum: return internal::make_sum(spec, unit);
    case Exchange::kGather: return internal::make_gather(spec, unit);
    case Exchange::kSharded: return internal::make_sharded(spec, unit);
  }
  throw Error(Errc::kInternal, "unknown exchange");
}

namespace internal {
namespace {

// Sizes of the consecutive tensors in the range. Numbers outside matrices count as a tensor.
std::vector<std::int64_t> tensors_of(const Unit& unit, const Range& range) {
  std::vector<std::int64_t> counts;
  std::int64_t at = range.first;
  const auto up_to = [&](std::int64_t end) {
    end = std::min(end, range.first + range.count);
    if (end > at) counts.push_back(end - at);
    at = std::max(at, end);
  };
  for (const Matrix& matrix : unit.matrices) {
    up_to(matrix.first);
    up_to(matrix.first + matrix.rows * matrix.columns);
  }
  up_to(unit.count);
  return counts;
}

// Largest size of uncompressed tensors: the smallest tensors that together add at most a quarter to
// the bytes.
std::int64_t small_size(const Codec& codec, const Unit& unit) {
  auto tensors = tensors_of(unit, {0, unit.count});
  std::sort(tensors.begin(), tensors.end());
  std::int64_t left = codec.bytes(unit.count) / 4, small = 0;
  for (const std::int64_t count : tensors) {
    left -= 4 * count;
    if (left < 0) return std::min(small, count - 1);
    small = count;
  }
  return small;
}

}  // namespace

Range shard_of(const Unit& unit, int rank) {
  const std::int64_t length = shard_length(unit.count, unit.world),
                     first = std::min(unit.count, rank * length);
  return {first, std::min(unit.count - first, length)};
}

std::unique_ptr<Codec> make_codec(const Spec& spec, const Unit& unit, const Range& range) {
  if (spec.kind == Kind::kRandomK)
    return make_random_k(spec.amount, spec.memory == Memory::kNone, tensors_of(unit, range));
  auto codec = compress::make_codec(spec);
  if (spec.kind != Kind::kSign) return codec;
  const std::int64_t small = small_size(*codec, unit);
  return make_parts(std::move(codec), small, tensors_of(unit, range));
}

std::int64_t shard_bytes(const Spec& spec, const Unit& unit) {
  std::int64_t most = 0;
  for (int rank = 0; rank < unit.world; ++rank) {
    const Range shard = shard_of(unit, rank);
    most = std::max(most, make_codec(spec, unit, shard)->bytes(shard.count));
  }
  return most;
}

StagedReducer::StagedReducer(const Spec& spec, const Unit& unit)
    : spec_(spec),
      unit_(unit),
      velocity_(spec.momentum_before && unit.momentum.factor != 0
                    ? static_cast<std::size_t>(unit.count)
                    : 0) {}

void StagedReducer::begin(float* values, std::int64_t step) {
  values_ = values;
  step_ = step;
  stage_ = 0;
  if (!velocity_.empty()) take_momentum();
}

// Also runs in warm-up, so that the optimizer never has to take over the momentum. If gradients
// enter at once after warm-up, they include the remaining effect of the velocities, m / (1 - m) of
// them (with Nesterov m^2 / (1 - m)), and end the velocities.
void StagedReducer::take_momentum() {
  const double m = unit_.momentum.factor;
  const auto factor = static_cast<float>(m), all = static_cast<float>(1 / (1 - m));
  const float owed = (unit_.momentum.nesterov ? factor * factor : factor) * all;
  const bool at_once = at_once_ && step_ >= spec_.warmup && m < 1;
  const auto before = velocity_.rewrite();
  const auto now = velocity_.now();
  for (std::size_t i = 0; i < now.size(); ++i) {
    const float gradient = values_[i];
    if (at_once) {
      values_[i] = all * gradient + owed * before[i];
      now[i] = 0.0f;
      continue;
    }
    const float velocity = factor * before[i] + gradient;
    now[i] = std::isfinite(velocity) ? velocity : 0.0f;
    values_[i] = unit_.momentum.nesterov ? gradient + factor * velocity : velocity;
  }
}

void StagedReducer::end_momentum(std::span<const float> residual) {
  const auto velocity = velocity_.now();
  for (std::size_t i = 0; i < velocity.size(); ++i)
    velocity[i] = residual[i] == 0.0f ? 0.0f : velocity[i];
}

std::vector<Remembered*> StagedReducer::all_memory() {
  auto all = memory();
  all.push_back(&velocity_);
  std::erase_if(all, [](const Remembered* one) { return one->empty(); });
  return all;
}

std::vector<std::span<float>> StagedReducer::state() {
  std::vector<std::span<float>> all;
  for (Remembered* const one : all_memory()) all.push_back(one->now());
  return all;
}

std::vector<std::span<const float>> StagedReducer::common_state() {
  std::vector<std::span<const float>> all;
  for (Remembered* const one : common_memory()) all.push_back(one->now());
  return all;
}

void StagedReducer::give_agreed(std::span<float> agreed, std::span<float> mine) {
  std::copy(agreed.begin(), agreed.end(), values().begin());
  forget_not_finite(values(), mine);
  forget_not_finite(values(), agreed);
}

void StagedReducer::commit() {
  for (Remembered* const one : all_memory()) one->commit();
}

void StagedReducer::rollback() {
  for (Remembered* const one : all_memory()) one->rollback();
}

std::optional<Round> StagedReducer::next() {
  const int now = stage_++;
  if (step_ >= spec_.warmup) return stage(now);
  if (now > 0) return std::nullopt;
  return Round{Round::How::kSum, DType::kF32, unit_.count, values_, nullptr};
}

Draw StagedReducer::draw(std::uint32_t part) const {
  return {spec_.seed, step_, unit_.id << 12 | (part & 0xfffu), unit_.rank};
}

void Unsent::begin() {
  if (kind_ == Memory::kFeedback) {
    before_ = values_.rewrite();
  } else {
    values_.change();
  }
}

void Unsent::encode(const Codec& codec, std::int64_t first, std::span<float> values,
                    const Draw& draw, std::vector<std::byte>& wire) {
  if (kind_ == Memory::kNone) return codec.encode(values, draw, wire, nullptr);
  const auto memory = values_.part(static_cast<std::size_t>(first), values.size());
  if (kind_ == Memory::kFeedback) {
    const auto before = before_.subspan(static_cast<std::size_t>(first), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += before[i];
    return codec.encode(values, draw, wire, memory.data());
  }
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= memory[i];
  const std::size_t begin = wire.size();
  codec.encode(values, draw, wire, nullptr);
  codec.add(std::span<const std::byte>(wire).subspan(begin), draw, memory);
}

void forget_not_finite(std::span<const float> result, std::span<float> memory) {
  if (kernels::is_within(result.data(), static_cast<std::int64_t>(result.size()),
                         std::numeric_limits<float>::max()))
    return;
  for (std::size_t i = 0; i < memory.size(); ++i)
    memory[i] = std::isfinite(result[i]) ? memory[i] : 0.0f;
}

namespace {

class PlainReducer final : public StagedReducer {
 public:
  using StagedReducer::StagedReducer;
  std::int64_t bytes_sent() const override {
    return all_reduce_bytes(4 * unit_.count, unit_.world);
  }
  const char* exchange() const override { return "plain"; }

 private:
  std::vector<Remembered*> memory() override { return {}; }
  std::optional<Round> stage(int stage) override {
    if (stage > 0) return std::nullopt;
    return Round{Round::How::kSum, DType::kF32, unit_.count, values().data(), nullptr};
  }
};

}  // namespace

std::unique_ptr<Reducer> make_plain(const Spec& spec, const Unit& unit) {
  return std::make_unique<PlainReducer>(spec, unit);
}

}  // namespace internal
}  // namespace weft::compress
