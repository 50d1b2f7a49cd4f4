#include "weft/engine/internal/transport.h"

#include <ATen/ATen.h>

#include <cmath>

#include "weft/engine/squares.h"

namespace weft::engine::internal {

void Transport::await_peers() {
  WEFT_CHECK(false, "only a transport in shared memory waits for its peers' gradients");
}

double Transport::norm() {
  double squares = 0;
  std::vector<at::Tensor> on_device;
  each_sum([&](int, const at::Tensor& sum) {
    if (sum.is_cpu()) {
      squares += squares_of(sum.reshape({-1}));
    } else {
      on_device.push_back(sum);
    }
  });
  if (!on_device.empty()) {
    const std::vector<at::Tensor> norms = at::_foreach_norm(on_device, 2, at::kDouble);
    squares += at::stack(norms).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

Weighting weigh(DataParallelOptions::Average average, const std::vector<double>& samples) {
  if (average == DataParallelOptions::Average::kSum) return {};
  const double ranks = static_cast<double>(samples.size());
  double total = 0;
  bool same = true;
  for (double n : samples) {
    total += n;
    same = same && n == samples[0];
  }
  if (average == DataParallelOptions::Average::kByRanks || same || total == 0)
    return {{}, 1.0 / ranks};
  Weighting weighting;
  for (double n : samples) weighting.weights.push_back(n / total);
  return weighting;
}

void put_average(const at::Tensor& param, const at::Tensor& average) {
  at::Tensor& grad = param.mutable_grad();
  if (grad.is_same(average)) return;
  if (!grad.defined() || grad.is_sparse()) {
    grad = average.clone();
  } else {
    grad.copy_(average);
  }
}

std::vector<int> agree_on_order(const Group& group, std::vector<int> ready, int params) {
  std::vector<bool> seen(index(params), false);
  for (int param : ready) seen[index(param)] = true;
  for (int param = params - 1; param >= 0; --param) {
    if (!seen[index(param)]) ready.push_back(param);
  }
  at::Tensor order = at::tensor(std::vector<int64_t>(ready.begin(), ready.end()), at::kLong);
  group.broadcast(order, 0);
  const auto* values = order.const_data_ptr<int64_t>();
  return {values, values + order.numel()};
}

}  // namespace weft::engine::internal
