// Loader: makes the batches of a rank, ahead of their use, in a thread of its own.
//
//   Sampler ──share──> Source::make ──> queue, at most `prefetch` ──> next()
//
// One pass over an epoch:  while (auto batch = loader.next(deadline)) { … }
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/data/augment.h"
#include "weft/data/image_set.h"
#include "weft/data/sampler.h"
#include "weft/data/source.h"

namespace weft::data {

// Returns a source of images as float32 [n, channels, height, width] and labels as int64 [n]. The
// memory of a batch is reused after its tensors are released.
Source image_source(std::shared_ptr<const ImageSet> set, Augment augment);

// Call one object from one thread only. The destructor joins the thread after the batch that it is
// making.
class Loader {
 public:
  // prefetch: number of batches to make ahead. 0: next() makes each batch, without a thread. The
  // thread starts with the first next().
  Loader(Source source, Sampler sampler, int prefetch = 2);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Returns the next batch, or nullopt at the end of the epoch; the call after that starts the next
  // epoch. The caller owns the tensors. Throws Error(kTimeout) if the deadline passes first; no
  // batch is lost, and the caller can try again. Rethrows an error of the source, also in later
  // calls until restore() or set_weights().
  std::optional<Batch> next(Deadline deadline);

  // Returns the state after the batch that next() returned last. Prefetched batches do not count,
  // so that a restored loader continues with the first batch not yet returned.
  SamplerState state() const;
  // Continues from `state` and clears an error of the source. Throws as Sampler::set_state; the
  // loader then continues from the state that it had.
  void restore(SamplerState state);

  // As Sampler::set_weights, for the batches that next() has not returned yet. Prefetched batches
  // are made again.
  void set_weights(std::vector<double> weights);

  std::int64_t batches() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace weft::data
