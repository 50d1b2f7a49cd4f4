// The final report of a failed launch: the rank that failed first, the cause, and its log. Pure
// functions, except for the out-of-memory counter.
#pragma once

#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

struct Failure {
  Situation situation;  // of this node, or of all nodes
  // Ranks of this node, as a range of situation.ranks. Consequences are listed for these alone.
  int first_here = 0;
  int count_here = std::numeric_limits<int>::max();
  int stop_signal = 0;  // signal that the launcher received; 0: none
  std::string asked;    // who asked the job to end, other than by that signal; empty: nobody
  bool out_of_memory = false;
  std::deque<std::string> last_lines;  // last lines of stderr of the rank at fault
  std::string log;                     // log file of the rank at fault; empty: none
};

// Returns lines: first the consequences, then the last lines of the rank at fault, and at the end
// that rank with its cause. Ranks with the same end and cause share a line. Empty if no
// rank failed.
std::string failure_report(const Failure& failure);

// "SIGKILL (signal 9): killed by another process …: its cause".
std::string description_of(const RankEnd& end, bool out_of_memory);

// Number of out-of-memory kills by the kernel so far: in this cgroup (v2), else on this machine.
long out_of_memory_kills();

}  // namespace weft::launch::internal
