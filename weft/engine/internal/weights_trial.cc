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
double time_of(TransportContext context, const std::vector<std::byte*>& weights, bool own) {
  std::vector<at::ScalarType> types;
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& param : context.params) {
    types.push_back(param.scalar_type());
    shapes.push_back(param.sizes().vec());
  }
  Updates updates({.rule = kernels::Sgd{.lr = 0.0}}, std::vector<std::string>(weights.size(), ""),
                  types, shapes);
  for (std::size_t i = 0; i < weights.size(); ++i)
    updates.put(static_cast<int>(i), {.weight = weights[i]});
  context.updates = &updates;
  context.private_weights = own;
  context.options.update_in_backward = false;
  context.buffers.clear();
  SampleCount samples;
  DataParallelBase::Times times;
  context.samples = &samples;
  context.watch = nullptr;
  context.times = &times;
  const auto transport = make_in_place_transport(context);
  std::vector<double> seconds;
  volatile double seen = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (auto& param : context.params) param.mutable_grad() = at::zeros_like(param);
    context.group.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t param = context.params.size(); param-- > 0;)
      transport->ready(static_cast<int>(param));
    transport->finish(1);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      seen = seen + squares_of(weights[i], context.params[i].numel(), dtype_of(types[i]));
    }
    seconds.push_back(seconds_since(start));
  }
  for (auto& param : context.params) param.mutable_grad().reset();
  return slowest_median(context.group, std::move(seconds));
}

}  // namespace

bool private_is_faster(const TransportContext& context, const std::vector<std::byte*>& shared,
                       const std::vector<std::byte*>& own) {
  const at::NoGradGuard guard;
  const double together = time_of(context, shared, false);
  return time_of(context, own, true) < together;
}

}  // namespace weft::engine::internal
