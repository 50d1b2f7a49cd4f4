// The signals that a launcher answers.
#pragma once

#include <optional>
#include <vector>

#include "weft/base/file.h"

namespace weft::launch::internal {

// Blocks the signals, and reads them from a descriptor. A signal that this process ignores, as
// after nohup, stays ignored. The destructor drops what has come, and unblocks them.
class StopSignals {
 public:
  // Throws Error(kUnavailable).
  explicit StopSignals(const std::vector<int>& numbers);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Readable when a signal has come.
  int fd() const { return fd_.get(); }
  // The next signal, without waiting.
  std::optional<int> next();

 private:
  const std::vector<int> numbers_;
  UniqueFd fd_;
};

// From now on, this process and what it executes ignore all requests to stop. For helpers of the
// launcher that end with it: a batch system may send the requests to all processes of the job.
void ignore_stop_signals();

}  // namespace weft::launch::internal
