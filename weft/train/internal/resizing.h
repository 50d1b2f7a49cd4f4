// The batch of a job whose number of replicas changes while it trains (train.on_resize).
#pragma once

#include <cstdint>
#include <string>

#include "weft/base/config.h"
#include "weft/plan/mesh/mesh.h"
#include "weft/train/options.h"

namespace weft::train::internal {

// Number of replicas that divide a batch, each with its own samples.
int replicas(const plan::MeshLayout& mesh);

// How a job divides its batch. A copy of the state and a checkpoint contain it.
struct BatchDivision {
  std::int64_t global = 0;     // Samples of an optimizer step, over all replicas.
  std::int64_t replicas = 0;   // Number of replicas that share it.
  std::int64_t pass = 0;       // Most samples of one forward pass of a replica.
  std::int64_t reference = 0;  // Global batch that the learning rate is meant for.
  // `global` and `replicas` of the start, from which "scale" computes every later batch. Those of
  // now with "keep_global_batch". 0 in checkpoints of older versions.
  std::int64_t first_global = 0, first_replicas = 0;
  // Number of ranks then. 0 if the run began with an older version.
  std::int64_t first_ranks = 0;
  // The same, or those of now where they are not known.
  std::int64_t start_global() const { return first_replicas > 0 ? first_global : global; }
  std::int64_t start_replicas() const { return first_replicas > 0 ? first_replicas : replicas; }
  bool operator==(const BatchDivision&) const = default;
};

// The batch that a configuration asks for: "train.batch=64", "train.batch_per_rank=16".
std::string asked_batch(const Config& config);

// Micro-batches of a batch: those of the options, by default 4 for each rank of pp, otherwise 1.
int micro_batches_of(const Options& options, const plan::MeshLayout& mesh);

// Options with which `ranks` ranks, in so many replicas, take options.batch in passes that are not
// larger than before. Never fewer passes than the options ask for.
Options with_passes(Options options, const BatchDivision& before, int replicas, int ranks);

// Options with which `ranks` ranks, in so many replicas, go on after `before`. A replica has at
// least one sample.
//   keep_global_batch   The global batch stays. A replica takes its larger share in more passes, so
//                       that a pass needs no more memory.
//   scale               The share of a rank stays, as it was at the start, also if the same ranks
//                       form another number of replicas. The learning rate is scaled linearly.
Options resized(Options options, const BatchDivision& before, int replicas, int ranks);

}  // namespace weft::train::internal
