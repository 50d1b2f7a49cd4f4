// The ranks of weft in the training benches: the steps of bench/peers/torch_training.py with weft's
// forms of parallelism.
#pragma once

#include <string>

#include "bench/suite/internal/rank.h"
#include "weft/engine/data_parallel.h"

namespace weft::cli::bench_internal {

enum class Variant {
  kShared,   // data_parallel and its own optimizer
  kPrivate,  // data_parallel and a torch::optim optimizer
  // like kShared without communication: each rank takes its own optimizer step, then a barrier
  kAlone,
  kSharded,      // engine::Sharded
  kParallelize,  // parallelize() over dp
  kTensor,       // a GPT's layers split over the ranks, which train on the batches of all ranks
  kWhole,        // one rank that trains on the batches of all ranks, with the optimizer of kShared
  // plain libtorch in one process on the batches of all ranks; its losses are the reference
  kReference,
};

struct TrainingWay {
  Variant variant = Variant::kShared;
  int stage = 0;                                     // kSharded: 1, 2, 3
  engine::Weights weights = engine::Weights::kAuto;  // kSharded

  // True if all ranks hold all weights, so that these can be compared.
  bool has_copies() const {
    return variant == Variant::kShared || variant == Variant::kPrivate ||
           variant == Variant::kParallelize ||
           (variant == Variant::kSharded && (stage < 3 || weights != engine::Weights::kPrivate));
  }
};

struct TrainingCase {
  std::string model;      // subject.h
  std::string optimizer;  // sgd (lr 0.01, momentum 0.9), adamw (lr 0.001)
  int batch = 0;          // samples per rank
  int batches = 1;        // kTensor, kWhole: number of ranks whose batches are used
};

// Executes {"steps":…,"warmup":…} and answers:
//   "step_ms":[…]   times of the steps after the warm-up, by rank 0's clock
//   "losses":[…]    losses of all steps, the mean over the ranks (kAlone: rank 0's)
//   "equal":true    only if has_copies(): the ranks hold the same weights, bit for bit
//   "state_mb"      weights, gradients and optimizer state of all ranks: the increase of the shared
//                   heaps since the start of the job
//   "grown_mb"      increase of the memory of all ranks since then, shared pages counted once (Pss)
//   "rss_mb":[…]    resident memory of each rank
//   "cpu_ms"        user and system time of all ranks per step after the warm-up
//   "peak_mb"       kSharded: the most that a rank held, by Sharded::memory()
//   "whole_mb"      kSharded: weights, gradients and optimizer state of the whole model
//   "largest_mb"    kSharded: the same for its largest part
// kReference answers only "losses". It also needs "batches", the number of ranks whose batches it
// uses, and starts from the initial weights with every command.
CarryOut make_training(const comm::Group& group, const TrainingWay& way, const TrainingCase& what);

}  // namespace weft::cli::bench_internal
