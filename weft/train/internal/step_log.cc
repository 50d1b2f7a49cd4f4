#include "weft/train/internal/step_log.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "weft/kernels/tree_sum.h"
#include "weft/observe/memory.h"

namespace weft::train::internal {

using observe::Phase;

StepLog::Seen StepLog::reduce(double sum, Wishes wishes) {
  const std::size_t slots = steps_.empty() ? 0 : steps_[0].losses.size();
  const auto ranks = static_cast<std::size_t>(world_.size());
  auto shared =
      at::zeros({static_cast<std::int64_t>(steps_.size() * slots + 2 + ranks)}, at::kDouble);
  double* const values = shared.data_ptr<double>();
  for (std::size_t i = 0; i < steps_.size(); ++i)
    std::copy(steps_[i].losses.begin(), steps_[i].losses.end(), values + i * slots);
  double* const wanted = values + steps_.size() * slots;
  wanted[0] = wishes.stop;
  wanted[1] = wishes.save;
  double* const compute = wanted + 2;  // by rank
  compute[world_.rank()] = mean_compute_ms();
  if (world_.size() > 1) world_.all_reduce(shared);
  Seen seen;
  seen.sum = sum;
  seen.memory_gb = static_cast<double>(observe::process_memory()) / 1e9;
  seen.stop = wanted[0] > 0;
  seen.save = wanted[1] > 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const double total = kernels::tree_sum(values + i * slots, slots);
    if (std::isfinite(total)) {
      not_finite_ = {};
    } else if (++not_finite_.steps == 1) {
      not_finite_.first_step = steps_[i].step;
      not_finite_.rank = first_rank_not_finite(steps_[i]);
    }
    seen.sum += total;
    seen.loss = total / steps_[i].samples;
    if (metrics_ == nullptr) continue;
    const bool is_last = i + 1 == steps_.size();
    write(steps_[i], seen.loss,
          is_last ? group_values(seen.memory_gb, {compute, ranks}) : observe::Values{});
  }
  steps_.clear();
  seen.not_finite = not_finite_;
  return seen;
}

// Collective: the sum is the same on all ranks, so that all come here. -1: the parts are finite,
// and their sum is not.
int StepLog::first_rank_not_finite(const Step& step) const {
  const bool good = std::all_of(step.losses.begin(), step.losses.end(),
                                [](double loss) { return std::isfinite(loss); });
  at::Tensor flags = at::zeros({world_.size()}, at::kDouble);
  flags[world_.rank()] = good ? 0 : 1;
  if (world_.size() > 1) world_.all_reduce(flags);
  const double* const bad = flags.const_data_ptr<double>();
  const double* const first = std::find(bad, bad + world_.size(), 1.0);
  return first == bad + world_.size() ? -1 : static_cast<int>(first - bad);
}

double StepLog::mean_compute_ms() const {
  double sum = 0;
  for (const Step& step : steps_)
    sum += step.ms[static_cast<std::size_t>(Phase::kForward)] +
           step.ms[static_cast<std::size_t>(Phase::kBackward)];
  return steps_.empty() ? 0 : sum / static_cast<double>(steps_.size());
}

// The slowest rank, and its time to compute over the median rank's.
observe::Values StepLog::group_values(double memory_gb, std::span<const double> compute_ms) const {
  observe::Values values{{"memory_gb", memory_gb}};
  std::vector<double> sorted(compute_ms.begin(), compute_ms.end());
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];
  if (sorted.size() < 2 || median <= 0) return values;
  const auto slowest = std::max_element(compute_ms.begin(), compute_ms.end());
  values.emplace_back("slowest_rank", static_cast<double>(slowest - compute_ms.begin()));
  values.emplace_back("slowest_over_median", *slowest / median);
  return values;
}

void StepLog::write(const Step& step, double loss, const observe::Values& more) const {
  observe::Values values{
      {"loss", loss}, {"lr", step.rate}, {"samples_per_s", step.samples / step.seconds}};
  if (step.grad_norm) values.emplace_back("grad_norm", *step.grad_norm);
  for (std::size_t phase = 0; phase < observe::kPhases; ++phase) {
    values.emplace_back(std::string(observe::to_string(static_cast<observe::Phase>(phase))) + "_ms",
                        step.ms[phase]);
  }
  values.insert(values.end(), more.begin(), more.end());
  metrics_->add("train", step.step, step.epoch, values);
}

}  // namespace weft::train::internal
