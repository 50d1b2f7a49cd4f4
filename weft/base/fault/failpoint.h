// Failpoints: named places at which a test makes this process fail.
//
//   WEFT_FAIL=update.middle:rank=1:step=7   kills rank 1 in its first update from step 7 on
//   WEFT_FAIL=copy.middle:rank=0:action=stop   stops rank 0 in its first copy (SIGSTOP)
//   WEFT_FAIL=state.begin:once=/tmp/x          kills the first process that loads the state
//
// Without WEFT_FAIL a failpoint costs one comparison. docs/fault-tolerance-reference.md lists
// the places.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

struct Failpoint {
  // kSpin: computes for ever. kSleep: sleeps for ever. kBreak: the process goes on, and recovery is
  // wrong on purpose (is_broken()).
  enum class Action { kKill, kStop, kExit, kSpin, kSleep, kBreak };
  std::string point;
  int rank = -1;           // Rank by the launcher (RANK). -1: any.
  std::int64_t step = -1;  // First step of training, from 1, in which it may fail. -1: any.
  Action action = Action::kKill;
  // True: only in a process that replaces a lost rank. False: only in others. Without effect on
  // kBreak.
  bool newcomer = false;
  // A file that the failing process makes. The failpoint does nothing once the file exists. Empty:
  // there is no such file, and every process may fail. Without effect on kBreak.
  std::string once = {};
  int attempt = -1;  // Starts of all ranks before this one. -1: any number.
  bool operator==(const Failpoint&) const = default;
};

// Parses WEFT_FAIL's value: failpoints separated by ';'. Throws Error(kBadConfig) for an unknown
// place, key or value.
std::vector<Failpoint> parse_failpoints(const std::string& text);

// Tells failpoints the step of training that runs, from 1.
void set_failpoint_step(std::int64_t step) noexcept;
// True if this process shall end or stop at `point` now. Throws Error(kBadConfig) if WEFT_FAIL is
// invalid.
bool is_failpoint(const char* point);
// True if `point` shall do its work wrongly now: a test of the tests of recovery. Throws as above.
bool is_broken(const char* point);
// Fails at `point` if it shall: prints one line, and ends, stops or hangs this process.
// Thread-safe.
void failpoint(const char* point);

}  // namespace weft
