#include "weft/observe/step_timer.h"

namespace weft::observe {

const char* to_string(Phase phase) {
  constexpr std::array<const char*, kPhases> kNames{"data", "forward", "backward", "communication",
                                                    "optimizer"};
  return kNames[static_cast<std::size_t>(phase)];
}

StepTimer::Scope::Scope(StepTimer& timer, Phase phase)
    : trace_("phase", to_string(phase)),
      timer_(timer),
      outer_(timer.innermost_),
      phase_(static_cast<std::size_t>(phase)),
      start_(timer.now_()) {
  timer_.innermost_ = this;
}

StepTimer::Scope::~Scope() {
  const Clock::duration whole = timer_.now_() - start_;
  timer_.spent_[phase_] += whole - inner_;
  if (outer_ != nullptr) outer_->inner_ += whole;
  timer_.innermost_ = outer_;
}

double StepTimer::ms(Phase phase) const {
  return std::chrono::duration<double, std::milli>(spent_[static_cast<std::size_t>(phase)]).count();
}

}  // namespace weft::observe
