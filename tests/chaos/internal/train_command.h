// The command lines of a job of `weft train`, on one host or on several.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/fault.h"
#include "tests/chaos/internal/hosts.h"
#include "tests/chaos/internal/job.h"

namespace weft::chaos::internal {

struct TrainCommand {
  std::string weft, recipe;
  std::string ranks = "2";  // or MIN:MAX, on this machine
  std::vector<std::string> settings;
  std::optional<int> max_replacements = {};
  int min_ranks = 0;
  int spares = 0;
  std::vector<std::string> launching;  // more options of the launcher, as words
  std::string folder;                  // of the job
  const Hosts* hosts = nullptr;        // null: this machine

  std::string runs() const { return folder + "/runs"; }
  std::string checkpoints() const { return folder + "/runs/run/ckpt"; }
  JobOptions job(const std::vector<std::string>& environment, bool resumed) const;
};

// Failpoints in the form of WEFT_FAIL as faults. Throws Error(kBadConfig) for an unknown place, key
// or value. Throws Error(kInvalidArgument) for one without a rank, since its victim must be known,
// and for one that breaks recovery.
std::vector<Fault> failpoint_faults(const std::string& text);

}  // namespace weft::chaos::internal
