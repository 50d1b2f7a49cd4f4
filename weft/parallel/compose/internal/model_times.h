// The seconds that a model spends in forward, backward, communication and updates.
#pragma once

#include <chrono>
#include <optional>

#include "weft/base/deadline.h"
#include "weft/observe/trace.h"
#include "weft/parallel/compose/internal/composition.h"

namespace weft::parallel::internal {

class ModelTimes {
 public:
  // Adds its lifetime to a time, in seconds.
  class Scope {
   public:
    explicit Scope(double& to) : to_(to) {}
    ~Scope() { to_ += seconds_since(begin_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    double& to_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  };

  // `composition` must outlive it.
  explicit ModelTimes(Composition& composition) : c_(composition) {}

  // A batch begins, and ends. The time in between that no action takes is communication.
  void begin_batch();
  void end_batch();
  // An action of the pipeline begins, and ends. Work and waits of the engines do not count as
  // forward or backward.
  void begin_action(const schedule::pipeline::Action& action);
  void end_action(const schedule::pipeline::Action& action);
  Scope communication() { return Scope(times_.communication); }
  // Counts the time that the engines have waited since the last call as communication.
  void count_waits() { times_.communication += take_engine_times().wait; }
  // Calls fn(), which updates the weights. Waits of the engines in it are communication.
  template <class Fn>
  void update(const Fn& fn);
  // Since the last call. See ParallelModel. One rank alone waits for nobody.
  ParallelModel::Times take();

 private:
  using Clock = std::chrono::steady_clock;

  engine::DataParallelBase::Times take_engine_times();
  double counted() const;

  Composition& c_;
  ParallelModel::Times times_;
  Clock::time_point batch_began_;
  double counted_before_ = 0;                // of the current batch
  Clock::time_point began_;                  // start of the current action
  std::optional<observe::TraceScope> span_;  // of it
};

template <class Fn>
void ModelTimes::update(const Fn& fn) {
  count_waits();
  {
    const Scope time(times_.update);
    fn();
  }
  const double waited = take_engine_times().wait;
  times_.communication += waited;
  times_.update -= waited;
}

}  // namespace weft::parallel::internal
