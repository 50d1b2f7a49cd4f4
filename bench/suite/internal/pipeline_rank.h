// weft's ranks of `weft bench pipeline` and `weft bench stages`.
#pragma once

#include <string>

#include "bench/suite/internal/rank.h"

namespace weft::cli::bench_internal {

struct PipelineCase {
  // gpt-384 or gpt-128: its blocks without embedding and head, so that stages are equal.
  std::string model;
  int micro_batches = 8;
  int samples = 1;  // of a micro-batch
};

// The blocks over the ranks, inputs and targets of numbers. Carries out
// {"do":…,"schedule":…,"steps":…,"warmup":…}:
//   "steps"      steps of the whole pipeline, with AdamW between them, outside the time
//   "stage"      each rank its own blocks by the same schedule, alone: what the rank computes in a
//                step
//   "frozen"     the same with 1F1B and weights that need no gradient: forwards, and backwards to
//                the inputs
//   "forward"    the same with forwards alone
//   "reference"  plain libtorch on the whole batch, with all blocks on every rank
// and answers "step_ms", each the mean over the ranks, and "losses" of all steps.
CarryOut make_pipeline(const comm::Group& group, const PipelineCase& what);

// One rank. Carries out
//   {"do":"cuts","model","stages"}    "cuts": where Pipeline cuts the model by itself (pipeline.h)
//   {"do":"times","model","rounds"}   "count": its parts; "ms": of all runs of neighboring parts
//                                     [i, j), by i and then j, as one stage:
//                                     forward and backward, the median over rounds
CarryOut make_stages(const comm::Group& group);

}  // namespace weft::cli::bench_internal
