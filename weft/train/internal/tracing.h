// Records a time line (trace) of some steps: all ranks in one file, on rank 0's clock.
#pragma once

#include <cstdint>
#include <string>

#include "weft/comm/group.h"
#include "weft/observe/trace.h"

namespace weft::train::internal {

struct TraceSteps {
  std::int64_t first = 0, last = 0;  // inclusive, counted as in metrics.jsonl; 0: none
};

// Parses "steps=10:15". Throws Error(kInvalidArgument), which names the expected form.
TraceSteps parse_trace(const std::string& text);

class Tracing {
 public:
  Tracing(Group world, TraceSteps steps) : world_(std::move(world)), steps_(steps) {}

  // Sets the output file, on rank 0.
  void write_to(std::string file) { file_ = std::move(file); }

  // Training begins after `step`. If no step to record is left, forgets them and, if it `tells`,
  // says so.
  void start(std::int64_t step, bool tells);

  // Null if no steps are to be recorded.
  observe::Trace* trace() { return steps_.first > 0 ? &trace_ : nullptr; }
  // Call before and after each step, with its number. after() the last traced step is collective:
  // it gathers the spans of all ranks, and rank 0 writes the file.
  void before(std::int64_t step) {
    trace_.record(step >= steps_.first && step <= steps_.last);
    trained_ = step;
  }
  void after(std::int64_t step) {
    if (step == steps_.last) write();
  }
  // Where ranks are at steps of their own: call it when they have met after `step`, in place of
  // after() and finish(). Writes once the last step was passed, or at the end. Collective.
  void meet(std::int64_t step, bool is_end = false) {
    if (steps_.first == 0 || (step < steps_.last && !is_end)) return;
    if (has_none(step)) return tell_of_none();
    write();
    steps_ = {};
  }
  // Writes the recorded steps if training ended before the last requested one. Collective.
  void finish() {
    if (trace_.recording()) return write();
    if (steps_.first > 0 && has_none(trained_)) tell_of_none();
  }

 private:
  void write();
  void tell_of_none() const;
  // True if no step to record was trained. `step`: the last one that was trained.
  bool has_none(std::int64_t step) const { return step < steps_.first || step == begun_; }
  // As the user gives it.
  std::string text() const {
    return "--trace steps=" + std::to_string(steps_.first) + ":" + std::to_string(steps_.last);
  }

  Group world_;
  TraceSteps steps_;
  std::string file_;
  observe::Trace trace_;
  std::int64_t begun_ = 0, trained_ = 0;  // the step before the first one, and the last step
};

// Nanoseconds to add to this rank's steady clock to get rank 0's. Collective: rank 0 exchanges some
// messages with each other rank. Ranks of one host share a clock and exchange none.
std::int64_t offset_to_rank0(const Group& world);

}  // namespace weft::train::internal
