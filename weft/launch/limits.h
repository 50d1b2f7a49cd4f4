// Limits of replacements, restarts and stop signals, for the membership of a job (membership.h) and
// for the processes of a node (supervision.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>

namespace weft::launch {

// A limit of replacements that is never reached.
constexpr int kNoLimit = std::numeric_limits<int>::max();
// A crash loop ends: no process is started after this number of new ones in a row that ended before
// they had joined.
constexpr int kMaxNeverJoined = 3;
// A rank is given up after this number of starts in a row that failed, since the machine had run
// out of something.
constexpr int kMaxFailedStarts = 30;
// All ranks are started again at most this number of times in a row without progress: a step of
// training beyond all before, or on nodes that meet another checkpoint.
constexpr int kMaxRestores = 3;

// A job that cannot go on with its ranks: none is left that has the state, or the first group
// cannot form.
struct Standstill {
  int restores = 0;          // times in a row that all ranks were started again; see kMaxRestores
  bool may_replace = false;  // replacements are left
  bool meets = false;        // the first group has not formed
  bool has_trained = false;  // there may be a checkpoint
  bool fails_again = false;  // the program itself has failed
};
// True if all ranks start again.
inline bool may_start_again(const Standstill& seen) {
  return seen.restores < kMaxRestores && seen.may_replace && !seen.fails_again &&
         (seen.meets || seen.has_trained);
}

// Stop signals within this time of the first one are the same request. When a terminal closes, its
// shell and the system both send SIGHUP. Batch systems and systemd signal all processes of a job.
constexpr auto kOneRequest = std::chrono::milliseconds(500);

constexpr auto kFirstBackOff = std::chrono::milliseconds(500);

// The pause before the next start, after this number of failed ones in a row. After none there is
// no pause. After the first one it is kFirstBackOff, and it doubles with each further one, up to
// `most`.
inline std::chrono::milliseconds back_off(
    int failed, std::chrono::milliseconds most = std::chrono::milliseconds::max()) {
  constexpr int kMaxDoublings = 20;  // beyond any limit that is used
  if (failed <= 0) return std::chrono::milliseconds(0);
  return std::min<std::chrono::milliseconds>(
      kFirstBackOff * (std::int64_t{1} << std::min(failed - 1, kMaxDoublings)), most);
}

// " (3 of 20)"; empty: without a limit, or if there are no replacements.
inline std::string count_of_replacements(int made, int most) {
  if (most == kNoLimit || most == 0) return "";
  return " (" + std::to_string(made) + " of " + std::to_string(most) + ")";
}

}  // namespace weft::launch
