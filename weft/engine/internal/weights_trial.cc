#include "weft/engine/internal/weights_trial.h"

#include <ATen/ATen.h>

#include <chrono>

#include "weft/base/deadline.h"
#include "weft/engine/internal/in_place.h"
#include "weft/engine/internal/tuner.h"
#include "weft/engine/squares.h"

namespace weft::engine::internal {
namespace {

constexpr int kSteps = 16;

// Median seconds of a step on the slowest rank.
double time_of(Subject subject, const std::vector<std::byte*>& weights, bool own) {
  std::vector<at::ScalarType> types;
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& param : subject.params) {
    types.push_back(param.scalar_type());
    shapes.push_back(param.sizes().vec());
  }
  Updates updates({.rule = kernels::Sgd{.lr = 0.0}}, std::vector<std::string>(weights.size(), ""),
                  types, shapes);
  for (std::size_t i = 0; i < weights.size(); ++i)
    updates.put(static_cast<int>(i), {.weight = weights[i]});
  subject.updates = &updates;
  subject.private_weights = own;
  subject.options.update_in_backward = false;
  subject.buffers.clear();
  SampleCount samples;
  DataParallelBase::Times times;
  subject.samples = &samples;
  subject.watch = nullptr;
  subject.times = &times;
  const auto transport = make_in_place_transport(subject);
  std::vector<double> seconds;
  volatile double seen = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (auto& param : subject.params) param.mutable_grad() = at::zeros_like(param);
    subject.group.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t param = subject.params.size(); param-- > 0;)
      transport->ready(static_cast<int>(param));
    transport->finish(1);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      seen = seen + squares_of(weights[i], subject.params[i].numel(), dtype_of(types[i]));
    }
    seconds.push_back(seconds_since(start));
  }
  for (auto& param : subject.params) param.mutable_grad().reset();
  return slowest_median(subject.group, std::move(seconds));
}

}  // namespace

bool private_is_faster(const Subject& subject, const std::vector<std::byte*>& shared,
                       const std::vector<std::byte*>& own) {
  const at::NoGradGuard guard;
  const double together = time_of(subject, shared, false);
  return time_of(subject, own, true) < together;
}

}  // namespace weft::engine::internal
