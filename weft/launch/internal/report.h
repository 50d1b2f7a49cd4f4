// The last thing a failed launch prints: who failed first, why, and where to look. Pure, but for
// the out-of-memory counter.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

struct Failure {
  Situation situation;
  int first_rank = 0;   // global rank of local rank 0
  int stop_signal = 0;  // that the launcher was sent; 0: none
  bool out_of_memory = false;
  std::vector<std::string> causes;     // by local rank, from their error files; empty: none has one
  std::deque<std::string> last_lines;  // of the culprit's stderr
  std::string log;                     // of the culprit; empty: none
};

// Lines, each ended: consequences, the culprit's last lines, and last the culprit with its cause.
// Ranks that ended alike, with the same cause, share a line. Empty when no rank failed.
std::string failure_report(const Failure& failure);

// Kills by the kernel for lack of memory so far: in this cgroup (v2), else on this machine.
long out_of_memory_kills();

}  // namespace weft::launch::internal
