// weft's ranks of `weft bench training`: the steps of bench/peers/torch_training.py with weft's data parallelism.
#pragma once

#include <string>

#include "weft/cli/bench/internal/rank.h"

namespace weft::cli::bench_internal {

enum class Variant {
  kShared,     // data_parallel and its own optimiser
  kPrivate,    // data_parallel and a torch::optim optimiser
  kAlone,      // the first without communication: each rank a whole optimiser step of its own, and a meeting at the end of a step
  kReference,  // plain libtorch in one process on everybody's batches: what the others' losses are compared with
};

struct TrainingCase {
  std::string model;      // mlp, cnn, resnet18
  std::string optimizer;  // sgd (lr 0.01, momentum 0.9), adamw (lr 0.001)
  int batch = 0;          // samples a rank
};

// Carries out {"steps":…,"warmup":…} and answers
//   "step_ms":[…]   rank 0's clock, of the steps after the warm-up
//   "losses":[…]    of all steps, the mean over the ranks (kAlone: rank 0's)
//   "equal":true    where ranks reduce: they hold the same weights, bit for bit
//   "state_mb"      weights, gradients and optimiser state of all ranks: what the shared heaps hold more than before the job
//   "grown_mb"      memory of all ranks, shared pages counted once (Pss), more than before the job
//   "rss_mb":[…]    resident memory of each rank
// kReference also needs "batches", the number of ranks that it stands for; it starts from the beginning with every command.
CarryOut make_training(const comm::Group& group, Variant variant, const TrainingCase& what);

}  // namespace weft::cli::bench_internal
