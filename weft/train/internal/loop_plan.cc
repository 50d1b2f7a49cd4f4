// What the loop measures of its steps, and whether they still take as long as planned.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/base/log.h"
#include "weft/observe/memory.h"
#include "weft/train/internal/loop.h"
#include "weft/train/internal/measured.h"

namespace weft::train::internal {
namespace {

using observe::Phase;

constexpr std::int64_t kWarmSteps = 2;    // Steps that do not count.
constexpr std::size_t kKeptSteps = 4096;  // Steps whose times are kept, the last ones.

// In the order in which ranks exchange them.
enum Field { kStep, kData, kCompute, kCommunication, kUpdate, kWaited };

}  // namespace

void Loop::watch_plan(const StepParts& expected, Answer answer) {
  if (learner_->shared() != nullptr || expected.step <= 0) return;
  watch_.emplace(expected);
  answer_ = std::move(answer);
}

void Loop::count_step(const StepLog::Step& step) {
  if (counted_++ < kWarmSteps) return;
  const auto seconds = static_cast<float>(step.seconds);
  const auto count = static_cast<std::size_t>(counted_ - kWarmSteps - 1);
  if (step_seconds_.size() < kKeptSteps) {
    step_seconds_.push_back(seconds);
  } else {
    step_seconds_[count % kKeptSteps] = seconds;
  }
  counted_bytes_ += step.sent_bytes + step.shared_bytes;
  if (!watch_) return;
  const auto phase = [&](Phase one) { return step.ms[static_cast<std::size_t>(one)] / 1e3; };
  StepParts& sums = window_.parts;
  sums.step += step.seconds;
  sums.data += phase(Phase::kData);
  sums.compute += phase(Phase::kForward) + phase(Phase::kBackward);
  sums.communication += phase(Phase::kCommunication);
  sums.update += phase(Phase::kOptimizer);
  window_.waited += step.waited_s;
  ++window_steps_;
}

std::int64_t Loop::steps_left() const {
  const std::int64_t epochs = std::max<std::int64_t>(0, options_.epochs - epoch_ - 1);
  const std::int64_t left = epoch_steps_ - in_epoch_ + epochs * learner_->batches().per_epoch;
  return options_.max_steps > 0 ? std::min(left, options_.max_steps - step_) : left;
}

// All ranks have the same number of steps, and decide by the same numbers.
void Loop::watch_plan_now() {
  if (!watch_ || window_steps_ < watch_->steps()) return;
  const StepParts& sums = window_.parts;
  std::vector<double> mine = {sums.step,          sums.data,   sums.compute,
                              sums.communication, sums.update, window_.waited};
  for (double& one : mine) one /= static_cast<double>(window_steps_);
  std::vector<RankParts> ranks;
  for (const auto& of : gather_numbers(world_, mine)) {
    ranks.push_back(
        {{of[kStep], of[kData], of[kCompute], of[kCommunication], of[kUpdate]}, of[kWaited]});
  }
  const std::int64_t steps = std::exchange(window_steps_, 0);
  window_ = {};
  const auto departure = watch_->add(ranks, steps);
  if (!departure) return;
  if (world_.rank() == 0) log_warn(departure->text);
  if (departure->measured.step < watch_->expected().step) return;
  if (departure->cause == Cause::kSlowRank) return learner_->start_balancing();
  changes_plan_ = saves() && answer_ && answer_(*departure, steps_left());
  if (changes_plan_) return;
  if (world_.rank() == 0) log_info("the plan stays: no other layout is worth a change");
  watch_->expect(departure->measured);
}

// Collective.
void Loop::measure_run() {
  const comm::Traffic traffic = world_.traffic();
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, counted_ - kWarmSteps));
  at::Tensor most = at::tensor({median({step_seconds_.begin(), step_seconds_.end()}),
                                traffic.is_complete ? 0.0 : 1.0},
                               at::kDouble),
             sum = at::tensor(
                 {static_cast<double>(observe::peak_memory_share()), counted_bytes_ / steps},
                 at::kDouble);
  if (world_.size() > 1) {
    world_.all_reduce(most, ReduceOp::kMax);
    world_.all_reduce(sum);
  }
  const double *const values = most.const_data_ptr<double>(), *const sums =
                                                                  sum.const_data_ptr<double>();
  measured_ = {values[0], sums[0] / world_.size(), sums[1] / world_.size(), values[1] == 0};
}

}  // namespace weft::train::internal
