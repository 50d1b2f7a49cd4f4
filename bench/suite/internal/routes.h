// The routes of a collective over messages: its algorithms and chunk sizes, with the measured cost
// of each. Used by calibrate, --explain and --verify.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/suite/internal/rounds.h"
#include "weft/plan/collectives/choice.h"

namespace weft::cli::bench_internal {

// "ring", "chain in 64 KiB".
std::string name_of(schedule::Algorithm algorithm, std::int64_t chunk);

// The count of a schedule::Request whose payload() is about `bytes` of float32.
std::int64_t count_of(schedule::Collective collective, std::int64_t bytes, int world);

// One route of a collective. Several candidates of the planner can have the same schedule on every
// rank, step by step; they are one route.
struct Route {
  plan::Candidate candidate;
  std::vector<plan::Candidate> same;  // all candidates of this route, including `candidate`
  double seconds = 0;                 // measured time, the median of `rounds`
  std::vector<double> rounds;         // microseconds of each round
};

// All routes, sorted by predicted time, the best first.
std::vector<Route> routes_of(const plan::Planner& planner, const plan::Question& question);

struct Timing {
  int rounds = 5;
  double round_us = 4000;  // time of one route in a round; at least one call
  std::chrono::milliseconds limit{60'000};
};

// Measures the routes on `ranks` (schedule_rank.h) in interleaved rounds, and fills in their times.
// A route that fails is named on stderr and dropped.
void measure(std::vector<Route>& routes, const plan::Question& question,
             const std::shared_ptr<Participant>& ranks, const Timing& timing);

}  // namespace weft::cli::bench_internal
