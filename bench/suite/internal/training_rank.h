// weft's ranks of the benches of training: the steps of bench/peers/torch_training.py with weft's
// forms of parallelism.
#pragma once

#include <string>

#include "bench/suite/internal/rank.h"
#include "weft/engine/data_parallel.h"

namespace weft::cli::bench_internal {

enum class Variant {
  kShared,   // data_parallel and its own optimizer
  kPrivate,  // data_parallel and a torch::optim optimizer
  // the first without communication: each rank a whole optimizer step of its own, and a meeting at
  // the end of a step
  kAlone,
  kSharded,      // parallel::Sharded
  kParallelize,  // parallelize() over dp
  kTensor,       // a GPT's layers split over the ranks, which train on everybody's batches together
  kWhole,        // one rank that trains on everybody's batches, with the first's optimizer
  // plain libtorch in one process on everybody's batches: what the others' losses are compared with
  kReference,
};

struct TrainingWay {
  Variant variant = Variant::kShared;
  int stage = 0;                                         // kSharded: 1, 2, 3
  parallel::Weights weights = parallel::Weights::kAuto;  // kSharded

  // All ranks hold all weights, which can be compared.
  bool has_copies() const {
    return variant == Variant::kShared || variant == Variant::kPrivate ||
           variant == Variant::kParallelize ||
           (variant == Variant::kSharded && (stage < 3 || weights != parallel::Weights::kPrivate));
  }
};

struct TrainingCase {
  std::string model;      // subject.h
  std::string optimizer;  // sgd (lr 0.01, momentum 0.9), adamw (lr 0.001)
  int batch = 0;          // samples a rank
  int batches = 1;        // kTensor, kWhole: of how many ranks
};

// Carries out {"steps":…,"warmup":…} and answers
//   "step_ms":[…]   rank 0's clock, of the steps after the warm-up
//   "losses":[…]    of all steps, the mean over the ranks (kAlone: rank 0's)
//   "equal":true    has_copies(): the ranks hold the same weights, bit for bit
//   "state_mb"      weights, gradients and optimizer state of all ranks: what the shared heaps hold
//                   more than before the job
//   "grown_mb"      memory of all ranks, shared pages counted once (Pss), more than before the job
//   "rss_mb":[…]    resident memory of each rank
//   "cpu_ms"        user and system time of all ranks for a step after the warm-up
//   "peak_mb", "whole_mb", "largest_mb"   kSharded: the most that a rank held, by
//                                         Sharded::memory(); weights, gradients and state of the
//                   whole model, and of its largest part
// kReference also needs "batches", the number of ranks that it stands for; it starts from the
// beginning with every command.
CarryOut make_training(const comm::Group& group, const TrainingWay& way, const TrainingCase& what);

}  // namespace weft::cli::bench_internal
