// Runs a job to its end, with faults or without, and records what happened.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/chaos/internal/injector.h"
#include "tests/chaos/internal/job.h"
#include "tests/chaos/record.h"

namespace weft::chaos::internal {

struct RunOptions {
  // Options of the job's start. `resumed`: of a job that continues one that was told to stop.
  // `failpoints`: those that it must reach, as WEFT_FAIL.
  std::function<JobOptions(bool resumed, const std::string& failpoints)> job;
  std::string checkpoints;  // folder of the run's checkpoints
  std::vector<Fault> faults;
  bool overlap = false;
  FullDisk* disk = nullptr;
  Hosts* hosts = nullptr;
  // Seconds after the first step at which the job is told to stop. 0: it runs to its end.
  double stop_after_s = 0;
  double limit_s = 600;      // Longest time of the whole run.
  bool own_dev_shm = false;  // Files in /dev/shm are the job's.
};
JobRecord run(const RunOptions& options);

// SHA-256 of the newest checkpoint's tensors: names, types, shapes and bytes of all parts. Empty if
// there is no checkpoint. Throws Error(kCorrupt) for a damaged one.
std::string digest_of(const std::string& checkpoints);

}  // namespace weft::chaos::internal
