// The ranks of weft in `weft bench pipeline` and `weft bench stages`.
#pragma once

#include <string>

#include "bench/suite/internal/rank.h"

namespace weft::cli::bench_internal {

struct PipelineCase {
  // gpt-384 or gpt-128. Only its blocks are used, without embedding and head, so that all stages
  // are equal.
  std::string model;
  int micro_batches = 8;
  int samples = 1;  // samples per micro-batch
};

// Trains the blocks, divided over the ranks, on random inputs and targets. Executes
// {"do":…,"schedule":…,"steps":…,"warmup":…}, where "do" is:
//   "steps"      steps of the whole pipeline, followed by AdamW, which is not timed
//   "stage"      each rank runs only its own blocks, by the same schedule: the computation of the
//                rank in a step
//   "frozen"     like "stage", with weights that need no gradient: forward, and backward to the
//                inputs
//   "forward"    like "stage", with forward only
//   "reference"  plain libtorch on the whole batch, with all blocks on every rank
// Answers "step_ms", each the mean over the ranks, and "losses" of all steps.
CarryOut make_pipeline(const comm::Group& group, const PipelineCase& what);

// Runs on one rank. Executes:
//   {"do":"cuts","model","stages"}    answers "cuts": the automatic cuts of Pipeline (pipeline.h)
//   {"do":"times","model","rounds"}   answers "count": the number of parts; "ms": the time of each
//                                     run of adjacent parts [i, j) as one stage, by i and then j:
//                                     forward and backward, the median over the rounds
CarryOut make_stages(const comm::Group& group);

}  // namespace weft::cli::bench_internal
