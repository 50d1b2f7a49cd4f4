#include "weft/ps/internal/tensor_updates.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "weft/kernels/reduce.h"

namespace weft::ps::internal {
namespace {

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

std::size_t state_count(const Options& options) {
  return options.rule ? optim::state_names(*options.rule).size() : 0;
}

}  // namespace

TensorUpdates::TensorUpdates(const Options& options, std::size_t values)
    : options_(options), states_(state_count(options), std::vector<float>(values)) {
  if (options.adaptive_compensation) mean_square_.assign(values, 0);
}

std::uint64_t TensorUpdates::bytes(const Options& options, std::uint64_t values) {
  return sizeof(float) * values *
         (1 + state_count(options) + (options.adaptive_compensation ? 1 : 0));
}

void TensorUpdates::apply(const Update& update, std::span<float> values) {
  float* const weight = values.data() + update.offset;
  if (!options_.rule) return add(weight, update.gradient, update.count);
  optim::UpdateRule rule = *options_.rule;
  if (update.lr >= 0) optim::set_lr(rule, update.lr);
  const bool compensates = !update.pulled.empty();
  const std::int64_t chunk = compensates ? kChunk : update.count;
  std::array<float, kChunk> compensated;
  for (std::int64_t begin = 0; begin < update.count; begin += chunk) {
    const std::int64_t count = std::min(chunk, update.count - begin);
    const float* from = update.gradient + begin;
    if (compensates) {
      std::copy_n(from, count, compensated.begin());
      compensate(update, begin, values,
                 std::span(compensated).first(static_cast<std::size_t>(count)));
      from = compensated.data();
    }
    optim::FlatStep<float> step{
        .weight = weight + begin, .gradient = from, .count = count, .step = update.step};
    for (std::size_t i = 0; i < states_.size(); ++i)
      step.state[i] = states_[i].data() + update.offset + begin;
    optim::update_flat(rule, step);
  }
}

// gradient + lambda g g (w - pulled), in place.
void TensorUpdates::compensate(const Update& update, std::int64_t begin,
                               std::span<const float> values, std::span<float> gradient) {
  const auto offset = static_cast<std::size_t>(update.offset + begin);
  const auto lambda = static_cast<float>(options_.delay_compensation);
  const float* const now = values.data() + offset;
  const float* const then = update.pulled.data() + offset;
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

void TensorUpdates::put(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(states_.size()));
  save(out);
}

TensorUpdates TensorUpdates::taken(ByteReader& in, const Options& options) {
  TensorUpdates taken;
  taken.options_ = options;
  taken.states_.resize(in.take_count(sizeof(std::uint64_t)));
  return taken.loaded(in);
}

void TensorUpdates::save(ByteWriter& out) const {
  for (const auto& state : states_) put_floats(out, state);
  put_floats(out, mean_square_);
}

TensorUpdates TensorUpdates::loaded(ByteReader& in) const {
  TensorUpdates loaded;
  loaded.options_ = options_;
  for (std::size_t i = 0; i < states_.size(); ++i) loaded.states_.push_back(take_floats(in));
  loaded.mean_square_ = take_floats(in);
  return loaded;
}

bool TensorUpdates::fits(std::size_t values, bool is_defined) const {
  return states_.size() == (is_defined ? state_count(options_) : 0) &&
         std::all_of(states_.begin(), states_.end(),
                     [&](const auto& state) { return state.size() == values; }) &&
         mean_square_.size() == (is_defined && options_.adaptive_compensation ? values : 0);
}

}  // namespace weft::ps::internal
