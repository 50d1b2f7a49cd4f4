// Saves and resumes a training run. A checkpoint holds
//
//   parts  model (parameters and buffers), optimizer, scaling (of the loss), codec (if gradients
//          are compressed), workers and strategy (workers.h)
//   state  step, epoch, position, running sum of the epoch's loss, seed, division of the batch,
//          number of training samples, best and last evaluation, number of skipped steps
//
// Random numbers need no state: each is a function of seed, epoch, sample, step and rank position.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/comm/group.h"
#include "weft/data/sampler.h"
#include "weft/optim/noise_scale.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/train/internal/best.h"
#include "weft/train/internal/decisions.h"
#include "weft/train/internal/resizing.h"
#include "weft/train/internal/run_count.h"

namespace weft::train::internal {

class Workers;

struct Progressed {
  std::int64_t step = 0;       // optimizer steps done
  data::SamplerState sampler;  // where the next batch starts
  double epoch_loss = 0;       // summed over the samples of this epoch so far
  double epoch_samples = 0;    // whose losses are in epoch_loss: not those of skipped steps
  std::uint64_t seed = 0;
  BatchDivision batch;
  std::string asked_batch;         // what the configuration asks for: "train.batch=64"
  optim::NoiseScale::State noise;  // zeros in checkpoints of older versions
  std::int64_t passes = 1;         // batches of a step
  Best::State best;                // of the evaluations so far
  std::int64_t samples = 0;        // of the training data
  // Step of the last evaluation; -1: none. That of the checkpoint in older versions.
  std::int64_t evaluated_step = -1;
  LeftOut left_out = {};  // zeros in checkpoints of older versions
  // Requests of callbacks that wait for the next step in which the ranks agree. Only in copies in
  // memory: a run that resumes from a checkpoint has other callbacks.
  Callbacks::Requests asked = {};
};

// This rank's part of the state of a run. `parts`: of the model (Learner::parts()).
checkpoint::Shards shards_of(checkpoint::Parts parts, Progressed progressed);

// Throws Error(kInvalidArgument) on all ranks if the state of one of them cannot be saved.
// Collective.
void check_savable(const Group& world, const checkpoint::Parts& parts);

// Saves the checkpoints of a run. Each rank writes its own slices, in the background if async is
// set and there is enough memory.
class RunSaver {
 public:
  struct Options {
    std::string folder;  // used on rank 0 only
    int keep = 3;        // 0: all
    bool async = true;
    // Checkpoint of the best evaluation so far, which is kept.
    BestMark best = {};
    std::vector<std::int64_t> damaged = {};  // steps of checkpoints that do not count towards keep
  };
  // Allocates the memory for the copies that asynchronous saves need, for states like `now`.
  // Collective.
  RunSaver(const Group& world, const checkpoint::Parts& now, const Options& options);

  // Starts to save a state (shards_of()). Call between two steps. Waits for the previous
  // save. If that one failed, rank 0 logs an error, and training can continue. `best`: the best
  // evaluation so far; if it is of this step, this is the best checkpoint, which is kept.
  // Collective.
  void save(const checkpoint::Shards& shards, const BestMark& best = {});
  // Logs the result of a save that has ended since. Not collective.
  void poll();
  // Waits for the last save. If it failed, rank 0 logs an error. Throws the loss of a rank, also
  // one that save() or poll() has logged. Collective.
  void settle();
  // Waits for the last save. Collective. Throws its error on all ranks. With `ends`, the training
  // is done, so the launcher does not start the ranks again after such an error: they would do it
  // all again. The loss of a rank is no such error.
  void finish(bool ends = true);

 private:
  void note(const std::optional<checkpoint::AsyncSaver::Result>& result);
  void report(const std::optional<checkpoint::AsyncSaver::Result>& result);

  const Group world_;
  const std::string folder_;
  const int keep_;
  BestMark best_;      // the best evaluation whose checkpoint was begun
  std::int64_t kept_;  // step of the best checkpoint that is complete; -1: none
  std::vector<std::int64_t> damaged_;
  std::optional<Error> loss_;  // the loss of a rank that has ended the last save
  checkpoint::AsyncSaver saver_;
};

// A checkpoint that a run resumes from.
class Saved {
 public:
  explicit Saved(checkpoint::Reader reader, std::vector<std::int64_t> damaged = {})
      : reader_(std::move(reader)), damaged_(std::move(damaged)) {}

  const checkpoint::Reader& reader() const { return reader_; }
  // Steps of newer checkpoints, which are damaged.
  const std::vector<std::int64_t>& damaged() const { return damaged_; }
  // Throws Error(kCorrupt) if a number is missing. Only the global batch is in checkpoints of older
  // versions; the rest is then 0.
  BatchDivision batch() const;
  // Progressed::asked_batch; empty in checkpoints of older versions.
  std::string asked_batch() const;
  // Throws Error(kCorrupt) if a number is missing, Error(kInvalidArgument) if the run had another
  // seed or global batch size, Error(kBadConfig) in the middle of an epoch if the training data had
  // another number of samples.
  Progressed progress(std::uint64_t seed, std::int64_t batch, std::int64_t samples) const;
  // Loads the state into the model, or by way of `workers` if it is not null. Collective. Throws
  // Error(kInvalidArgument) naming the first tensor that is missing or has another shape.
  void restore(parallel::ParallelModel& model, const Group& world,
               Workers* workers = nullptr) const;

 private:
  checkpoint::Reader reader_;
  std::vector<std::int64_t> damaged_;
};

// The newest complete checkpoint in rank 0's `folder`; nullopt if there is none. Every rank opens
// it, so several hosts need a shared folder. Damaged checkpoints are skipped with a warning. Throws
// Error(kCorrupt) if all are damaged. Collective.
std::optional<Saved> load_latest(const Group& world, const std::string& folder);

}  // namespace weft::train::internal
