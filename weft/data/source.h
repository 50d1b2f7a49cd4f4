// Batches of a data set, by the numbers of their samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace weft::data {

// One rank's part of one global batch.
struct Share {
  std::vector<std::int64_t> indices;  // may be empty in a training batch smaller than the world
  std::int64_t epoch = 0;
  std::int64_t first = 0;        // where the share starts in the epoch's order
  std::int64_t global_size = 0;  // samples of the batch over all ranks (kSequential: of this block)
};

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
