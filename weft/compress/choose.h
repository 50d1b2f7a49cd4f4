// codec = "auto": what compression would cost and gain here, from measurements; then, from a trial,
// whether it did. Pure: ranks that give the same numbers get the same answer, so these have to be
// agreed on first.
#pragma once

#include <string>
#include <vector>

#include "weft/compress/spec.h"

namespace weft::compress {

// A training step without compression, in seconds.
struct StepCost {
  double step = 0;     // all of it
  double exposed = 0;  // of it, waiting for gradients of peers
  // All gradients' way over the link by themselves, hidden behind backward or not.
  double transfer = 0;
  double latency = 0;  // of one more collective of no size
};

struct Candidate {
  Spec spec;
  double code = 0;      // seconds a step to encode and decode
  double bytes = 1;     // sent, as a share of those sent without compression
  int more_rounds = 0;  // collectives a step beyond those without compression
};

struct Choice {
  Spec spec;
  double predicted = 0;  // seconds a step
  std::string why;       // one line
};

// Candidates that lose least come first: a later one must promise at least 10 % less time than the
// best before it, and the first at least 5 % less than none.
Choice choose(const StepCost& cost, const std::vector<Candidate>& candidates);

// In the order that choose() wants: bf16, int8, int4, powersgd.
std::vector<Spec> standard_candidates();

// After trying: the codec stays unless its steps took longer.
Choice confirm(const Choice& tried, double seconds_without, double seconds_with);

}  // namespace weft::compress
