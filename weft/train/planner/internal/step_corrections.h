// Compares real steps of one layout with their prediction, so that other layouts of the same model
// on the same machines are predicted better. Pure functions.
#pragma once

#include <optional>
#include <vector>

#include "weft/plan/step/step.h"
#include "weft/train/internal/plan_watch.h"
#include "weft/train/internal/probe.h"

namespace weft::train::internal {

// A layout of replicas alone, as it was predicted without corrections and as it was measured.
struct ComparedStep {
  int micro_batches = 1;
  plan::Parts predicted;
  ProbedStep measured;
};

// Ranks are unequal if the slowest computes for longer than the fastest, by this factor.
inline constexpr double kUnequalRanks = 1.25;
// Seconds of gradients and optimizer that do not depend on the bytes, before the correction.
inline constexpr double kSyncStart = 5e-5;

// From a step with few micro-batches and, if there is one, a step of the same samples with more.
// The difference shows what a micro-batch costs by itself. `crowd`: ranks for each processor, at
// least 1.
plan::Corrections corrections(const ComparedStep& few, const std::optional<ComparedStep>& more,
                              double crowd);

// Returns the job with the speeds that real steps have shown. `expected`: the planned parts of a
// step. `traffic`: the bytes that a rank sends in it. With slower links (Cause::kLinks), messages
// between stages take longer, too.
plan::Job departed(plan::Job job, const StepParts& expected, const Departure& departure,
                   double traffic);

// Batch shares of the replicas along dp, by the speed of their ranks of fsdp and ep, relative to
// their mean (plan::Layout::shares); at least 5 % each. Of ranks that have the same samples, the
// slowest one counts. `slowness`: plan::Corrections::slowness, one for each rank of the layout.
std::vector<double> shares_of(const plan::Layout& layout, const std::vector<double>& slowness);

}  // namespace weft::train::internal
