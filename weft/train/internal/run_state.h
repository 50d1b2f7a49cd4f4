// How a training run is saved and resumed. A checkpoint holds
//
//   parts  model (parameters and buffers), optimizer, scaling (of the loss), codec (where gradients
//          are compressed)
//   state  step, epoch, position, running sum of the epoch's loss, seed, global batch
//
// Random numbers need no state: each is a function of seed, epoch, sample, step and place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
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

// Saves a run's checkpoints, each rank its own slices, in the background where that is asked for
// and memory allows it.
class RunSaver {
 public:
  struct Options {
    std::string folder;  // rank 0's counts
    int keep = 3;        // 0: all
    bool async = true;
  };
  // Collective. Makes the memory for the copies that asynchronous saves need.
  RunSaver(const Group& world, parallel::ParallelModel& model, const Options& options);

  // Starts to save the model and its optimizer as they are between two steps. Collective. Waits for
  // the save before. One that failed is logged as an error on rank 0; training can go on.
  void save(const Progressed& progressed);
  // Logs a save that has ended meanwhile. Not collective.
  void poll();
  // Waits for the last save. Collective. Throws its error on all ranks.
  void finish();

 private:
  RunSaver(const Group& world, parallel::ParallelModel& model, const Options& options,
           const checkpoint::Shards& now);
  void report(const std::optional<checkpoint::AsyncSaver::Result>& result) const;

  const Group world_;
  parallel::ParallelModel& model_;
  const std::string folder_;
  const int keep_;
  checkpoint::AsyncSaver saver_;
};

// A checkpoint that a run resumes from.
class Saved {
 public:
  explicit Saved(checkpoint::Reader reader) : reader_(std::move(reader)) {}

  const checkpoint::Reader& reader() const { return reader_; }
  // Throws Error(kCorrupt) where a number is missing, Error(kInvalidArgument) where the run had
  // another seed or global batch.
  Progressed progress(std::uint64_t seed, std::int64_t batch) const;
  // Collective. Throws Error(kInvalidArgument) naming the first tensor that is missing or has
  // another shape.
  void restore(parallel::ParallelModel& model, const Group& world) const;

 private:
  checkpoint::Reader reader_;
};

// The newest complete checkpoint in the folder that rank 0 names, for every rank (so several hosts
// need a shared folder); nullopt when there is none. Damaged ones are passed over with a warning;
// throws Error(kCorrupt) where all are. Collective.
std::optional<Saved> load_latest(const Group& world, const std::string& folder);

}  // namespace weft::train::internal
