// `weft chaos`: trains undisturbed, trains again under faults, and judges the second run.
//
//   seed ──> schedule.h ──> faults ──┐
//                                    ▼
//   weft train, undisturbed     weft train ── step times, output ──> record.h
//        │                           │                                  │
//        └── SHA-256 of the last checkpoint of both ────────────────> judge.h ──> report.h
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/fault.h"
#include "tests/chaos/plans.h"
#include "tests/chaos/report.h"

namespace weft::chaos {

struct Options {
  std::string command;  // The whole command line, for the report.
  std::string weft;     // Program that trains.
  // Of the job: a recipe, its ranks, and settings of its keys.
  std::string recipe;
  std::string ranks = "2";  // or MIN:MAX, as for `weft train -n`
  std::vector<std::string> settings;
  // As for `weft train`. None: as many as there are faults, or no limit with MIN:MAX.
  std::optional<int> max_replacements = {};
  int min_ranks = 0;
  int spares = 0;
  // More options of its launcher, as words: {"--on-hang", "replace"}.
  std::vector<std::string> launching;

  std::vector<FaultKind> faults{FaultKind::kKill};
  int count = 10;  // Faults, over all plans.
  std::uint64_t seed = 1;
  std::string fail;  // More faults, in the form of WEFT_FAIL.
  // Faults at random times with this mean, for so long, instead of `count` faults. 0: no.
  double mean_s = 0, total_s = 0;
  std::vector<Plan> plans;  // Empty: the recipe as it is.
  int hosts = 1;            // Network namespaces that the ranks are spread over, with TCP.
  bool overlap = false;     // Every second fault happens while the job recovers.
  bool same_weights = true;
  std::string folder;  // For the report and the runs; it is made.
  double limit_s = 0;  // Longest time of a job. 0: from the undisturbed one.
  // Called before each job with a line about it.
  std::function<void(const std::string&)> tell = [](const std::string&) {};
};

// Runs the jobs, one after the other, and writes report.json and report.html into the folder after
// each plan. Call it before any thread is started. Throws Error(kInvalidArgument) for options that
// do not fit, Error(kUnavailable) where the machine does not allow a kind of fault, and
// Error(kBadConfig) if an undisturbed job fails, with its last line.
Outcome run(const Options& options);

}  // namespace weft::chaos
