// Batches of a data set, by the numbers of their samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "weft/data/share.h"

namespace weft::data {

// What a model reads, and what it should give. The first dimension of each tensor counts the samples of the share; it may be 0 (see Share).
struct Batch {
  std::vector<at::Tensor> inputs, targets;
  Share share;  // which samples these are, and how many the ranks have together
};

// Where the samples come from.
struct Source {
  std::int64_t size = 0;  // samples of an epoch
  // Makes the samples of the share, in its order: the inputs and targets of a batch. Called by one thread at a time; may throw.
  std::function<Batch(const Share& share)> make = nullptr;
};

}  // namespace weft::data
