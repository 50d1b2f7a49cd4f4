#include "weft/engine/internal/codec_trial.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/base/deadline.h"
#include "weft/base/log.h"
#include "weft/compress/measure.h"
#include "weft/engine/internal/tuner.h"

namespace weft::engine::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSettle = 2, kTimed = 6;

}  // namespace

std::optional<compress::Spec> CodecTrial::step_ended(double exposed, std::int64_t numbers,
                                                     const std::vector<compress::Unit>& buffers) {
  if (done()) return std::nullopt;
  std::optional<compress::Spec> spec;
  if (++steps_ > kSettle) {
    steps_s_.push_back(seconds_since(started_));
    exposed_s_.push_back(exposed);
  }
  if (steps_ == kSettle + kTimed) {
    spec = stage_ == Stage::kWithout ? choose(numbers, buffers) : confirm();
    say();
    steps_ = 0;
    steps_s_.clear();
    exposed_s_.clear();
  }
  started_ = Clock::now();
  return spec;
}

std::optional<compress::Spec> CodecTrial::choose(std::int64_t numbers,
                                                 const std::vector<compress::Unit>& buffers) {
  compress::StepCost cost;
  cost.step = without_s_ = slowest_median(group_, steps_s_);
  cost.exposed = std::min(cost.step, slowest_median(group_, exposed_s_));
  const LinkCost link = measure_link(group_, numbers);
  cost.latency = link.latency;
  cost.transfer = link.element * static_cast<double>(numbers) +
                  static_cast<double>(buffers.size()) * link.latency;
  choice_ = compress::choose(cost, measure_candidates(buffers));
  stage_ = choice_.spec == compress::Spec{} ? Stage::kDone : Stage::kWith;
  return done() ? std::nullopt : std::optional(choice_.spec);
}

// Takes the time of the slowest rank and the bytes of the rank that sends most.
std::vector<compress::Candidate> CodecTrial::measure_candidates(
    const std::vector<compress::Unit>& buffers) const {
  std::vector<double> own;
  const auto specs = compress::standard_candidates();
  for (const auto& spec : specs) {
    const compress::Candidate one = compress::measure(spec, buffers);
    own.insert(own.end(), {one.code, one.bytes, 1.0 * one.more_rounds});
  }
  at::Tensor all = at::tensor(own, at::kDouble);
  group_.all_reduce(all, ReduceOp::kMax);
  const double* value = all.const_data_ptr<double>();
  std::vector<compress::Candidate> candidates;
  for (const auto& spec : specs) {
    candidates.push_back({spec, value[0], value[1], static_cast<int>(value[2])});
    value += 3;
  }
  return candidates;
}

std::optional<compress::Spec> CodecTrial::confirm() {
  stage_ = Stage::kDone;
  const auto tried = choice_.spec;
  choice_ = compress::confirm(choice_, without_s_, slowest_median(group_, steps_s_));
  return choice_.spec == tried ? std::nullopt : std::optional(choice_.spec);
}

void CodecTrial::say() const {
  if (group_.rank() == 0)
    log_info("codec = auto: " + compress::to_string(choice_.spec) + ": " + choice_.why);
}

}  // namespace weft::engine::internal
