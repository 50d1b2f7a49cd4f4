#include "weft/train/internal/step_measures.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "weft/base/log.h"
#include "weft/observe/memory.h"
#include "weft/train/internal/measured.h"

namespace weft::train::internal {
namespace {

using observe::Phase;

constexpr std::int64_t kWarmSteps = 2;    // Steps that do not count.
constexpr std::size_t kKeptSteps = 4096;  // Steps whose times are kept, the last ones.

// In the order in which ranks exchange them.
enum Field { kStep, kData, kCompute, kCommunication, kUpdate, kWaited };

}  // namespace

void StepMeasures::add(const StepLog::Step& step) {
  if (count_++ < kWarmSteps) return;
  const auto seconds = static_cast<float>(step.seconds);
  const auto count = static_cast<std::size_t>(count_ - kWarmSteps - 1);
  if (seconds_.size() < kKeptSteps) {
    seconds_.push_back(seconds);
  } else {
    seconds_[count % kKeptSteps] = seconds;
  }
  bytes_ += step.sent_bytes + step.shared_bytes;
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

// All ranks have the same number of steps.
std::optional<Departure> StepMeasures::departure() {
  if (!watch_ || window_steps_ < watch_->steps()) return std::nullopt;
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
  return watch_->add(ranks, steps);
}

StepMeasures::Change StepMeasures::look(std::int64_t steps_left, bool saves) {
  const double expected = watch_ ? watch_->expected().step : 0;
  const auto found = departure();
  if (!found) return Change::kNone;
  if (world_.rank() == 0) log_warn(found->text);
  // Steps that are faster than expected are no reason to change the plan.
  if (found->measured.step < expected) return Change::kNone;
  if (found->cause == Cause::kSlowRank) return Change::kBalance;
  if (saves && answer_ && answer_(*found, steps_left)) return Change::kPlan;
  if (world_.rank() == 0) log_info("the plan stays: no other layout is worth a change");
  return Change::kNone;
}

MeasuredRun StepMeasures::total() const {
  const comm::Traffic traffic = world_.traffic();
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, count_ - kWarmSteps));
  at::Tensor most = at::tensor(
                 {median({seconds_.begin(), seconds_.end()}), traffic.is_complete ? 0.0 : 1.0},
                 at::kDouble),
             sum = at::tensor({static_cast<double>(observe::peak_memory_share()), bytes_ / steps},
                              at::kDouble);
  if (world_.size() > 1) {
    world_.all_reduce(most, ReduceOp::kMax);
    world_.all_reduce(sum);
  }
  const double *const values = most.const_data_ptr<double>(), *const sums =
                                                                  sum.const_data_ptr<double>();
  return {values[0], sums[0] / world_.size(), sums[1] / world_.size(), values[1] == 0};
}

}  // namespace weft::train::internal
