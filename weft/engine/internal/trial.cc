#include "weft/engine/internal/trial.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "weft/kernels/reduce.h"

namespace weft::parallel::internal {
namespace {

constexpr int kSteps = 16;

// The median seconds of a step.
double time_of(Subject subject, const Layout& layout, const std::vector<float*>& weights, bool whole) {
  const std::vector<std::string> names(subject.params.size(), "");
  RuleUpdater updater({.rule = kernels::Sgd{.lr = 0.0}}, layout, weights, {}, names);
  subject.updater = &updater;
  subject.whole = whole;
  subject.buffers.clear();
  double samples = 0;
  DataParallelBase::Times times;
  subject.samples = &samples;
  subject.times = &times;
  const auto sync = make_host_sync(subject);
  std::vector<double> seconds;
  volatile double seen = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (auto& param : subject.params) param.mutable_grad() = at::zeros_like(param);
    subject.group.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t param = subject.params.size(); param-- > 0;) sync->ready(static_cast<int>(param));
    sync->finish();
    for (std::size_t param = 0; param < weights.size(); ++param)
      seen = seen + kernels::sum_of_squares(weights[param], subject.params[param].numel());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  for (auto& param : subject.params) param.mutable_grad().reset();
  std::nth_element(seconds.begin(), seconds.begin() + kSteps / 2, seconds.end());
  return seconds[kSteps / 2];
}

}  // namespace

bool whole_is_faster(const Subject& subject, const Layout& layout, const std::vector<float*>& shared, const std::vector<float*>& own) {
  at::NoGradGuard guard;
  at::Tensor seconds = at::tensor({time_of(subject, layout, shared, false), time_of(subject, layout, own, true)}, at::kDouble);
  subject.group.all_reduce(seconds, ReduceOp::kMax);
  return seconds[1].item<double>() < seconds[0].item<double>();
}

}  // namespace weft::parallel::internal
