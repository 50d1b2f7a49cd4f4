// What a checkpoint of a training run holds, to and from the objects of the run.
//
//   parts  model (parameters and buffers), optimizer, codec (where gradients are compressed)
//   state  step, epoch, position, the running sum of the epoch's loss, seed, global batch
//
// Random numbers need no state: each is a function of (seed, epoch, sample).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "weft/checkpoint/checkpoint.h"
#include "weft/comm/group.h"
#include "weft/data/sampler.h"
#include "weft/engine/optimizer.h"

namespace torch::nn {
class Module;
}

namespace weft::train::internal {

struct Progressed {
  std::int64_t step = 0;       // optimiser steps done
  data::SamplerState sampler;  // where the next batch starts
  double epoch_loss = 0;       // summed over the samples of this epoch so far
  std::uint64_t seed = 0;
  std::int64_t batch = 0;  // global
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

checkpoint::Checkpoint pack(const torch::nn::Module& module, const parallel::Optimizer& optimizer, const Progressed& progressed);
checkpoint::Checkpoint pack(checkpoint::TensorMap model, const NamedTensors& optimizer, const Progressed& progressed);

// What a gradient codec remembers, as a part "codec"; none where there is nothing.
void pack_codec(const NamedTensors& state, checkpoint::Checkpoint& checkpoint);
NamedTensors unpack_codec(const checkpoint::Checkpoint& checkpoint);

// Throws Error(kCorrupt) where a number is missing, Error(kInvalidArgument) where the run had another seed or global batch.
Progressed unpack_progress(const checkpoint::Checkpoint& checkpoint, std::uint64_t seed, std::int64_t batch);
// Throws Error(kInvalidArgument) naming the first tensor that is missing or has another shape; the module is then unchanged.
void unpack_module(const checkpoint::Checkpoint& checkpoint, torch::nn::Module& module);
// Collective.
void unpack_optimizer(const checkpoint::Checkpoint& checkpoint, parallel::Optimizer& optimizer);

// Rank 0's text becomes everybody's. Collective.
std::string broadcast_text(const Group& world, const std::string& text);

// The newest whole checkpoint in the folder that rank 0 names, loaded by every rank (so several hosts need a shared folder); nullopt when
// there is none. Damaged ones are passed over with a warning. Collective.
std::optional<checkpoint::Checkpoint> load_latest(const Group& world, const std::string& folder);

}  // namespace weft::train::internal
