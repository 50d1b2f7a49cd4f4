// The ways of doing a collective over messages, each with what its schedule costs: what
// calibration, explanation and verification share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/suite/internal/rounds.h"
#include "weft/plan/choice.h"

namespace weft::cli::bench_internal {

// "ring", "chain in 64 KiB".
std::string name_of(schedule::Algorithm algorithm, std::int64_t chunk);

// The schedule's count of a collective whose payload() is about `bytes` of float32.
std::int64_t count_of(schedule::Collective collective, std::int64_t bytes, int world);

// A way of doing a collective, and those of the planner's candidates whose schedules are the same,
// step by step, on every rank.
struct Route {
  plan::Candidate candidate;
  std::vector<plan::Candidate> same;  // `candidate` too
  double seconds = 0;                 // measured, the median of `rounds`
  std::vector<double> rounds;         // microseconds
};

// All ways, by what the table predicts, the best first.
std::vector<Route> routes_of(const plan::Planner& planner, const plan::Question& question);

struct Timing {
  int rounds = 5;
  double round_us = 4000;  // of one way, at least one call
  std::chrono::milliseconds limit{60'000};
};

// Fills in what the ways take on `ranks` (schedule_rank.h), in interleaved rounds. One that fails
// is named on stderr and dropped.
void measure(std::vector<Route>& routes, const plan::Question& question,
             const std::shared_ptr<Participant>& ranks, const Timing& timing);

}  // namespace weft::cli::bench_internal
