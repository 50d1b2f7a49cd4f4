// Test helpers: a network of the caller as blocks, with the squared error as loss.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::parallel::internal::own_net {

inline BlockModel model_of(const torch::nn::Sequential& own) {
  BlockModel model = blocks_of(own);
  model.loss = [](const at::Tensor& y, const at::Tensor& t) { return torch::mse_loss(y, t); };
  return model;
}

// Eight samples of three values; the first two are the targets.
inline at::Tensor inputs() { return (torch::arange(24) * 0.37).sin().view({8, 3}); }

inline at::Tensor share_of_replica(const ParallelModel& model) {
  return inputs().chunk(model.replicas())[static_cast<std::size_t>(model.replica())];
}

inline void backward(ParallelModel& model) {
  const at::Tensor x = share_of_replica(model);
  model.train_step({x}, {x.narrow(1, 0, 2)});
}

}  // namespace weft::parallel::internal::own_net
