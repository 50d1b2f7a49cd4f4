// The final report of a failed launch: the rank that failed first, the cause, and its log. Pure
// functions, except for the out-of-memory counter.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

struct Failure {
  Situation situation;
  int first_rank = 0;   // global rank of local rank 0
  int stop_signal = 0;  // signal that the launcher received; 0: none
  bool out_of_memory = false;
  // By local rank, from their error files; empty: there are none.
  std::vector<std::string> causes;
  std::deque<std::string> last_lines;  // last lines of the failed rank's stderr
  std::string log;                     // log file of the failed rank; empty: none
};

// Returns lines: first the consequences, then the last lines of the rank that failed first, and at
// the end that rank with its cause. Ranks with the same end and cause share a line. Empty if no
// rank failed.
std::string failure_report(const Failure& failure);

// Number of out-of-memory kills by the kernel so far: in this cgroup (v2), else on this machine.
long out_of_memory_kills();

}  // namespace weft::launch::internal
