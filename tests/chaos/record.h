// What was observed of a training job, with and without faults. All times are seconds of one clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/fault.h"

namespace weft::chaos {

// A fault that was applied.
struct Applied {
  Fault fault;
  double at_s = 0;
  int pid = -1;           // Process of the victim, if it is a rank.
  std::int64_t step = 0;  // Newest finished step then.
  // Proof that it happened: the process ended, was seen stopped, a write failed, a packet was lost.
  bool reached = false;
  std::string why_not = {};  // If it did not reach its victim.
};

// A line that the job printed.
struct Line {
  double at_s = 0;
  std::string text;
};

// A step that a rank has finished, or (ready) the step after which it is about to continue.
struct RankStep {
  double at_s = 0;
  int rank = 0, ranks = 1;
  int job = 0;             // Number of times that the job was resumed before.
  std::int64_t group = 0;  // Epoch of the group.
  std::int64_t step = 0;
  std::int64_t epoch = 0, position = 0;  // Of the data, after the step.
  bool ready = false;
};

struct JobRecord {
  std::vector<Applied> faults;
  std::vector<Line> lines;
  std::vector<RankStep> steps;
  double began_s = 0, ended_s = 0;
  int exit_code = 0;                   // Of the last job.
  bool timed_out = false;              // It was ended at the limit of time.
  std::vector<std::string> positions;  // Where each rank was then.
  std::string digest;                  // SHA-256 of the last checkpoint; empty without one.
  std::vector<std::string> leftovers;  // Processes and files that outlived the job.
};

// A step that all ranks of a group have finished.
struct GroupStep {
  double at_s = 0;  // Of the last rank.
  int job = 0;
  std::int64_t group = 0, step = 0, epoch = 0, position = 0;
};
// In order of time.
std::vector<GroupStep> finished_steps(const std::vector<RankStep>& steps);

}  // namespace weft::chaos
