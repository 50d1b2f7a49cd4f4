// Times of finished steps, for programs that watch a training run from outside: weft chaos and the
// benches of recovery.
//
//   WEFT_STEP_TIMES=FILE weft train …    each rank appends a line for each step that it finishes:
//   {"ns":81234567,"pid":77,"rank":1,"ranks":4,"group":2,"step":12,"epoch":0,"position":768}
//
// A line is one write() of less than 200 bytes: a few microseconds for each step. Without
// WEFT_STEP_TIMES it costs one comparison.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/file.h"

namespace weft::observe {

struct StepTime {
  // Nanoseconds of CLOCK_MONOTONIC (std::chrono::steady_clock), which is the same for all processes
  // of a machine.
  std::int64_t ns = 0;
  int pid = 0;
  int rank = 0;            // Rank by the launcher (RANK).
  int ranks = 1;           // Number of ranks in the group now.
  std::int64_t group = 0;  // Epoch of the group: larger after each recovery.
  std::int64_t step = 0;   // Steps done, counted once each.
  // Where the next batch starts: epoch, and samples of this epoch that were used.
  std::int64_t epoch = 0, position = 0;
  // True: no step was done. The rank is about to continue after `step`.
  bool ready = false;
  bool operator==(const StepTime&) const = default;
};

std::string to_line(const StepTime& time);
// Inverse of to_line(), without the newline. nullopt for any other text.
std::optional<StepTime> step_time_of(const std::string& line);

// Appends to the file that WEFT_STEP_TIMES names. Not thread-safe.
class StepTimes {
 public:
  // Throws Error, naming the path, if the file cannot be opened.
  StepTimes();
  bool is_on() const { return static_cast<bool>(file_); }
  // Adds the time, the process and its rank to `time`, and writes it. Does nothing unless is_on().
  // Throws Error if that fails.
  void add(StepTime time);

 private:
  std::string path_;
  UniqueFd file_;
};

// Reads such a file while it grows.
class StepTimesReader {
 public:
  explicit StepTimesReader(std::string file) : path_(std::move(file)) {}
  // The lines since the last call. Empty if there is no file yet. A damaged line is left out.
  std::vector<StepTime> read();

 private:
  const std::string path_;
  UniqueFd file_;
  std::string rest_;  // of a line that is not complete yet
};

}  // namespace weft::observe
