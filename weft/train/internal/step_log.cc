#include "weft/train/internal/step_log.h"

#include <ATen/ops/zeros.h>

#include "weft/kernels/tree_sum.h"

namespace weft::train::internal {

StepLog::Seen StepLog::reduce(double sum, Wishes wishes) {
  const std::size_t slots = steps_.empty() ? 0 : steps_[0].losses.size();
  auto shared = at::zeros({static_cast<std::int64_t>(steps_.size() * slots + 2)}, at::kDouble);
  double* const values = shared.data_ptr<double>();
  for (std::size_t i = 0; i < steps_.size(); ++i) std::copy(steps_[i].losses.begin(), steps_[i].losses.end(), values + i * slots);
  double* const wanted = values + steps_.size() * slots;
  wanted[0] = wishes.stop;
  wanted[1] = wishes.save;
  if (world_.size() > 1) world_.all_reduce(shared);
  Seen seen;
  seen.sum = sum;
  seen.stop = wanted[0] > 0;
  seen.save = wanted[1] > 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const double total = kernels::tree_sum(values + i * slots, slots);
    seen.sum += total;
    seen.loss = total / steps_[i].samples;
    if (metrics_ != nullptr) write(steps_[i], seen.loss);
  }
  steps_.clear();
  return seen;
}

void StepLog::write(const Step& step, double loss) const {
  observe::Values values{{"loss", loss}, {"lr", step.rate}, {"samples_per_s", step.samples / step.seconds}};
  for (std::size_t phase = 0; phase < observe::kPhases; ++phase) {
    values.emplace_back(std::string(observe::to_string(static_cast<observe::Phase>(phase))) + "_ms", step.ms[phase]);
  }
  metrics_->add("train", step.step, step.epoch, values);
}

}  // namespace weft::train::internal
