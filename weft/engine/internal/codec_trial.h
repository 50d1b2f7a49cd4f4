// Implements codec = "auto". It times some steps without a codec, measures the link and the
// encoding, and tries the most promising codec for some steps. The codec stays if these steps were
// faster (compress/choose.h decides).
//
//   steps   2 settle, 6 timed ──> measure, choose ──> 2 settle, 6 timed ──> confirm
//
// Times are those of the slowest rank, so that all ranks decide the same.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "weft/comm/group.h"
#include "weft/compress/choose.h"
#include "weft/compress/reducer.h"

namespace weft::engine::internal {

class CodecTrial {
 public:
  explicit CodecTrial(Group group) : group_(std::move(group)) {}

  // Collective, at the end of each step. `exposed`: seconds that this rank waited for gradients.
  // `numbers`: values that the group sums in a step. `buffers`: the part that this rank sends.
  // Returns the codec to use from now on, if it changes.
  std::optional<compress::Spec> step_ended(double exposed, std::int64_t numbers,
                                           const std::vector<compress::Unit>& buffers);
  // True if the codec will not change any more.
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
  int steps_ = 0;  // steps of the current stage
  std::chrono::steady_clock::time_point started_;
  std::vector<double> steps_s_, exposed_s_;
  double without_s_ = 0;
  compress::Choice choice_;
};

}  // namespace weft::engine::internal
