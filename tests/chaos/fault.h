// The faults that `weft chaos` applies to a training job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::chaos {

enum class FaultKind {
  kKill,       // SIGKILL to a rank.
  kStop,       // SIGSTOP to a rank, for good.
  kPause,      // SIGSTOP, and SIGCONT before the launcher counts the rank as lost.
  kSlow,       // SIGSTOP and SIGCONT in turn: the rank runs a fifth of the time.
  kTerm,       // SIGTERM to a rank. The job stops with a checkpoint and is resumed.
  kDiskFull,   // The file system of the run folder is full.
  kPartition,  // A host loses its network.
  kFailpoint,  // WEFT_FAIL: the rank fails at a named place (base/fault/failpoint.h).
};
// "kill", "stop", "pause", "slow", "term", "disk-full", "partition", "failpoint".
const char* to_string(FaultKind kind);
// Parses names that commas separate. Throws Error(kInvalidArgument) with the known names.
std::vector<FaultKind> parse_faults(const std::string& names);

// True if the rank is lost, so that the group forms again.
bool loses_a_rank(FaultKind kind);
// True if it ends by itself after a while (Fault::lasts_s).
bool has_a_duration(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  int victim = 0;  // Rank; of kPartition the host; of kDiskFull none.
  // When it happens: this long after a rank has finished `after_step`. -1: this long after the
  // fault before it, or the first step.
  std::int64_t after_step = -1;
  double delay_s = 0;
  double lasts_s = 0;
  // kFailpoint: in the form of WEFT_FAIL. The job itself fails there; the other fields do not
  // count.
  std::string failpoint = {};
  bool operator==(const Fault&) const = default;
};

}  // namespace weft::chaos
