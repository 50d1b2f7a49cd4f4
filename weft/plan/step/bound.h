// Lower bounds of a step, for searches: they hold for every schedule of the pipeline.
#pragma once

#include "weft/plan/step/step.h"

namespace weft::plan {

struct Bound {
  double seconds = 0;  // The busiest rank does all its work, and the others fill and drain once.
  double memory = 0;   // States, buffers and the activations of one micro-batch.
};

// Takes a tenth of a millisecond. Throws as simulate_step() does.
Bound bound_of(const Job& job);

}  // namespace weft::plan
