// Records what a step takes: times by phase, bytes, waiting.
#pragma once

#include <chrono>
#include <cstdint>

#include "weft/comm/group.h"
#include "weft/data/sampler.h"
#include "weft/observe/run/step_times.h"
#include "weft/observe/step_timer.h"
#include "weft/train/internal/learner.h"
#include "weft/train/internal/step_log.h"

namespace weft::train::internal {

class StepRecorder {
 public:
  explicit StepRecorder(Group world) : world_(std::move(world)) {}

  // Step `number` begins.
  void begin(std::int64_t number);
  observe::StepTimer& timer() { return timer_; }
  // It has ended. The record lacks `bad_gradient`.
  StepLog::Step end(Learner::Step done, std::int64_t epoch, double rate);
  // For programs that watch the run from outside (WEFT_STEP_TIMES): `step` is done, and the next
  // batch starts `at`. `ready`: training is about to begin there.
  void note(std::int64_t step, const data::SamplerState& at, bool ready = false);

 private:
  const Group world_;
  observe::StepTimer timer_;
  observe::StepTimes times_;
  std::int64_t number_ = 0;
  std::chrono::steady_clock::time_point began_;
  comm::Traffic traffic_;  // at the begin, like waited_ns_
  std::int64_t waited_ns_ = 0;
};

}  // namespace weft::train::internal
