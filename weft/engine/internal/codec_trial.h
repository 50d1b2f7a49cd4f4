// codec = "auto" at work: some steps without a codec are timed, the link and the coding are
// measured, and the codec that promises most is tried for some steps; it stays if they took less
// time (compress/choose.h decides).
//
//   steps   2 settle, 6 timed ──> measure, choose ──> 2 settle, 6 timed ──> confirm
//
// Times are the slowest rank's, so that all ranks decide the same.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "weft/comm/group.h"
#include "weft/compress/choose.h"
#include "weft/compress/reducer.h"

namespace weft::parallel::internal {

class CodecTrial {
 public:
  explicit CodecTrial(Group group) : group_(std::move(group)) {}

  // Collective, at the end of each step: `exposed`, the seconds that this rank waited for
  // gradients; `numbers`, all that the group sums up in a step; `buffers`, what this rank sends of
  // it. Says which codec to use from now on, where that changes.
  std::optional<compress::Spec> step_ended(double exposed, std::int64_t numbers,
                                           const std::vector<compress::Unit>& buffers);
  // Nothing will change any more.
  bool done() const { return stage_ == Stage::kDone; }

 private:
  enum class Stage { kWithout, kWith, kDone };
  std::optional<compress::Spec> choose(std::int64_t numbers,
                                       const std::vector<compress::Unit>& buffers);
  std::vector<compress::Candidate> measure_candidates(
      const std::vector<compress::Unit>& buffers) const;
  std::optional<compress::Spec> confirm();
  void say() const;

  const Group group_;
  Stage stage_ = Stage::kWithout;
  int steps_ = 0;  // of this stage
  std::chrono::steady_clock::time_point started_;
  std::vector<double> steps_s_, exposed_s_;
  double without_s_ = 0;
  compress::Choice choice_;
};

// Seconds to encode and decode one step's buffers on this processor, without sending anything.
double time_coding(const compress::Spec& spec, const std::vector<compress::Unit>& buffers);

}  // namespace weft::parallel::internal
