#include "weft/engine/internal/codec_trial.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "weft/base/log.h"
#include "weft/engine/internal/tuner.h"

namespace weft::parallel::internal {
namespace {

using Clock = std::chrono::steady_clock;
using compress::Round;

constexpr int kSettle = 2, kTimed = 6;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Assumes that all ranks sent as much as this one.
void pretend(const Round& round, int world) {
  if (round.send == nullptr) return;
  const auto block = static_cast<std::size_t>(round.count) * size_of(round.dtype);
  for (int rank = 0; rank < world; ++rank) {
    const std::size_t from =
        round.how == Round::How::kAllToAll ? static_cast<std::size_t>(rank) * block : 0;
    std::memcpy(static_cast<std::byte*>(round.data) + static_cast<std::size_t>(rank) * block,
                static_cast<const std::byte*>(round.send) + from, block);
  }
}

struct Traffic {
  double sent = 0, plain = 0;
  int more_rounds = 0;
};
Traffic traffic_of(const compress::Spec& spec, const std::vector<compress::Unit>& buffers) {
  Traffic traffic;
  for (const auto& unit : buffers) {
    const auto reducer = compress::make_reducer(spec, unit);
    traffic.sent += static_cast<double>(reducer->bytes_sent());
    traffic.plain += static_cast<double>(compress::make_reducer({}, unit)->bytes_sent());
    const std::string exchange = reducer->exchange();
    traffic.more_rounds += exchange == "sharded" || exchange == "low rank" ? 1 : 0;
  }
  return traffic;
}

}  // namespace

double time_coding(const compress::Spec& spec, const std::vector<compress::Unit>& buffers) {
  const auto largest =
      std::max_element(buffers.begin(), buffers.end(),
                       [](const auto& a, const auto& b) { return a.count < b.count; });
  double all = 0;
  for (const auto& unit : buffers) all += static_cast<double>(unit.count);
  if (largest == buffers.end() || largest->count == 0) return 0;
  const auto reducer = compress::make_reducer(spec, *largest);
  std::vector<float> values(static_cast<std::size_t>(largest->count)), work;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) - 125.0f;
  double fastest = 0;
  for (int round = 0; round < 3; ++round) {
    work = values;
    const auto start = Clock::now();
    reducer->begin(work.data(), spec.warmup + round);
    while (const auto next = reducer->next()) pretend(*next, largest->world);
    const double seconds = seconds_since(start);
    fastest = round == 0 ? seconds : std::min(fastest, seconds);
  }
  return fastest * all / static_cast<double>(largest->count);
}

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
    const Traffic traffic = traffic_of(spec, buffers);
    own.push_back(time_coding(spec, buffers));
    own.push_back(traffic.plain > 0 ? traffic.sent / traffic.plain : 0.0);
    own.push_back(traffic.more_rounds);
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

}  // namespace weft::parallel::internal
