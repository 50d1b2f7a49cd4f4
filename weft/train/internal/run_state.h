// What a checkpoint of a training run holds, to and from the objects of the run: the one place that knows how a run is saved.
//
//   parts  model (parameters and buffers), optimizer, scaling (of the loss), codec (where gradients are compressed)
//   state  step, epoch, position, the running sum of the epoch's loss, seed, global batch
//
// Random numbers need no state: each is a function of seed, epoch, sample, step and place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/comm/group.h"
#include "weft/data/sampler.h"
#include "weft/parallel/compose/parallelize.h"

namespace weft::train::internal {

struct Progressed {
  std::int64_t step = 0;       // optimizer steps done
  data::SamplerState sampler;  // where the next batch starts
  double epoch_loss = 0;       // summed over the samples of this epoch so far
  std::uint64_t seed = 0;
  std::int64_t batch = 0;  // global
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Where a run's checkpoints are.
struct Shelf {
  Group world;
  std::string folder;  // rank 0's
  int keep = 3;        // 0: all
};

// The model and its optimizer as they are between two steps. Collective.
void save(const Shelf& shelf, parallel::ParallelModel& model, const Progressed& progressed);

// A checkpoint that a run goes on from.
class Saved {
 public:
  explicit Saved(checkpoint::Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  // What the codec remembers; empty without one.
  NamedTensors codec() const;
  // Throws Error(kCorrupt) where a number is missing, Error(kInvalidArgument) where the run had another seed or global batch.
  Progressed progress(std::uint64_t seed, std::int64_t batch) const;
  // Collective. Throws Error(kInvalidArgument) naming the first tensor that is missing or has another shape.
  void restore(parallel::ParallelModel& model, const Group& world) const;

 private:
  checkpoint::Checkpoint checkpoint_;
};

// The newest whole checkpoint in the folder that rank 0 names, for every rank (so several hosts need a shared folder); nullopt when there
// is none. Damaged ones are passed over with a warning. Collective.
std::optional<Saved> load_latest(const Group& world, const std::string& folder);

}  // namespace weft::train::internal
