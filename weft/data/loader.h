// Batches, made ahead by a thread.
//
//   Sampler ──share──> fill (images, targets) ──> queue, at most `prefetch` ──> next()
//
// One pass over an epoch:  while (auto batch = loader.next(deadline)) { … }
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/data/augment.h"
#include "weft/data/image_set.h"
#include "weft/data/sampler.h"

namespace weft::data {

struct Batch {
  at::Tensor images;   // float32 [n, channels, height, width]; n may be 0 (see Share)
  at::Tensor targets;  // int64 [n]
  Share share;         // which samples these are, and how many the ranks have together
};

// Where the samples come from.
struct Source {
  std::array<std::int64_t, 3> shape;  // channels, height, width
  // Writes the samples of the share: float32 [n, shape…] and int64 [n]. Called by one thread at a time; may throw.
  std::function<void(const Share& share, float* images, std::int64_t* targets)> fill;
};

Source image_source(std::shared_ptr<const ImageSet> set, Augment augment);

// The calls of one object come from one thread. Destruction stops and joins the thread; it waits for the sample being filled.
class Loader {
 public:
  // prefetch: batches made ahead; 0 makes each in next(), without a thread. The thread starts with the first next().
  Loader(Source source, Sampler sampler, int prefetch = 2);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch; nullopt at the end of the epoch, from where the next call starts the next epoch. The tensors are the caller's; their
  // memory is used again once the last reference to it is dropped.
  // Throws Error(kTimeout) when the deadline passes first (call again: nothing is lost), and what the source threw, from then on always.
  std::optional<Batch> next(Deadline deadline);

  // What follows the batch that next() gave last, not what was prefetched: restoring it goes on with exactly the batches not yet seen.
  SamplerState state() const;
  // Also clears an error. Throws as Sampler::set_state.
  void restore(SamplerState state);

  // How the batches that next() has not given yet are split over the ranks; what was prefetched is made again. As Sampler::set_weights.
  void set_weights(std::vector<double> weights);

  std::int64_t batches() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace weft::data
