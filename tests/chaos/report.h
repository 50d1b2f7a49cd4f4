// The result of `weft chaos`: as a table for people, as JSON, and as one HTML page with timelines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/chaos/judge.h"
#include "tests/chaos/record.h"

namespace weft::chaos {

// One job of a plan, with its undisturbed counterpart.
struct PlanOutcome {
  std::string name;
  std::vector<std::string> settings;
  int ranks = 1;
  JobRecord undisturbed, disturbed;
  // Seconds of a step of each undisturbed job: one, or one before and one after the job with
  // faults.
  std::vector<double> undisturbed_step_s;
  Verdict verdict;
};

struct Outcome {
  std::string command;
  std::uint64_t seed = 1;
  std::vector<PlanOutcome> plans;
};

// 0: all passed. 3: a fault did not happen, so the job proves nothing. 1: any other problem.
int exit_code(const Outcome& outcome);

// A table of the plans, the times of recovery, and each problem.
std::string to_text(const Outcome& outcome);
std::string to_json(const Outcome& outcome);
// The page of a to_json().
std::string to_html(const std::string& json);

}  // namespace weft::chaos
