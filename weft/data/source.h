// Source: makes batches of a data set from the numbers of their samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "weft/data/share.h"

namespace weft::data {

// The inputs of a model and its targets. The first dimension of each tensor counts the samples of
// the share; it may be 0 (see Share).
struct Batch {
  std::vector<at::Tensor> inputs, targets;
  Share share;  // Numbers of these samples, and the size of the batch over all ranks.
};

// A data set, as a function that makes batches of it.
struct Source {
  std::int64_t size = 0;  // Samples of an epoch.
  // Makes the inputs and targets of the share's samples, in its order. One thread at a time calls
  // it; it may throw. Numbers that operations on the CPU draw in it come from a generator of each
  // share, not from torch's global one. They depend on the sampler's seed, the epoch and the
  // share's position.
  std::function<Batch(const Share& share)> make = nullptr;
};

}  // namespace weft::data
