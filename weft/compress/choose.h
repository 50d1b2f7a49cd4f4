// Decisions of codec = "auto": the expected gain of compression from measurements, and the actual
// gain from a trial. Pure functions: ranks with the same numbers get the same answer, so they must
// agree on the numbers first.
#pragma once

#include <string>
#include <vector>

#include "weft/compress/spec.h"

namespace weft::compress {

// A training step without compression, in seconds.
struct StepCost {
  double step = 0;     // all of it
  double exposed = 0;  // part spent waiting for gradients of peers
  // Time to transfer all gradients over the link, hidden behind backward or not.
  double transfer = 0;
  double latency = 0;  // of one additional empty collective
};

struct Candidate {
  Spec spec;
  double code = 0;      // seconds per step to encode and decode
  double bytes = 1;     // bytes sent, as a fraction of those without compression
  int more_rounds = 0;  // additional collectives per step
};

struct Choice {
  Spec spec;
  double predicted = 0;  // seconds a step
  std::string why;       // one line
};

// Candidates are in the order of rising error. A later one must promise at least 10 % less time
// than the best before it, and the first one at least 5 % less than no codec.
Choice choose(const StepCost& cost, const std::vector<Candidate>& candidates);

// The candidates in the order for choose(): bf16, int8, int4, powersgd.
std::vector<Spec> standard_candidates();

// Decides after the trial: the codec stays unless its steps took longer.
Choice confirm(const Choice& tried, double seconds_without, double seconds_with);

}  // namespace weft::compress
