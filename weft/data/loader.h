// Batches, made ahead by a thread.
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

// Images as float32 [n, channels, height, width], their labels as int64 [n]. Memory of batches that
// nobody holds any more is used again.
Source image_source(std::shared_ptr<const ImageSet> set, Augment augment);

// The calls of one object come from one thread. Destruction stops and joins the thread; it waits
// for the sample being filled.
class Loader {
 public:
  // prefetch: batches made ahead; 0 makes each in next(), without a thread. The thread starts with
  // the first next().
  Loader(Source source, Sampler sampler, int prefetch = 2);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch; nullopt at the end of the epoch, from where the next call starts the next
  // epoch. The tensors are the caller's. Throws Error(kTimeout) when the deadline passes first
  // (call again: nothing is lost), and what the source threw, from then on always.
  std::optional<Batch> next(Deadline deadline);

  // What follows the batch that next() gave last, not what was prefetched: restoring it goes on
  // with exactly the batches not yet seen.
  SamplerState state() const;
  // Also clears an error. Throws as Sampler::set_state.
  void restore(SamplerState state);

  // How the batches that next() has not given yet are split over the ranks; what was prefetched is
  // made again. As Sampler::set_weights.
  void set_weights(std::vector<double> weights);

  std::int64_t batches() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace weft::data
