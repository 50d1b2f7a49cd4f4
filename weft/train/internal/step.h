// Forward and backward of one optimiser step on this rank, the plain way and the reproducible way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "weft/data/loader.h"
#include "weft/engine/data_parallel.h"
#include "weft/models/loss.h"
#include "weft/models/registry.h"
#include "weft/observe/step_timer.h"

namespace weft::train::internal {

using Parallel = parallel::DataParallel<torch::nn::Module>;

// What both ways work on. References outlive the steps.
struct StepParts {
  const models::Model& model;
  Parallel& parallel;
  models::LossOptions loss;
  bool bf16 = false;
  observe::StepTimer& timer;
};

// What a phase waited for peers counts as communication; weights that forward updated before it used them, as the optimizer's.
struct ExchangeTimes {
  parallel::DataParallelBase& parallel;
  observe::StepTimer& timer;
};
void count_exchange(const ExchangeTimes& of, observe::Phase from);

// bf16 autocast while it lives, where `on`; casts of weights are kept no longer than that.
class Autocast {
 public:
  explicit Autocast(bool on);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
};

// One forward and backward over the batch. Returns the loss summed over the local samples.
double plain_step(const StepParts& parts, const data::Batch& batch);

// The same by micro-shards: the global batch is cut into `shards` contiguous parts, each with a forward and backward of its own; gradients,
// running statistics and losses are combined along one fixed binary tree over the parts, of which a rank holds a subtree and the average
// kSum over ranks the rest. So the bits do not depend on the number of ranks. Returns, by micro-shard, the loss summed over its samples;
// zeros for those of other ranks. Leaves the combined gradients in grad() for step(). Collective where the model has running statistics.
std::vector<double> reproducible_step(const StepParts& parts, const data::Batch& batch, int shards);

}  // namespace weft::train::internal
