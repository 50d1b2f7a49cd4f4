// The time line of some steps, of all ranks in one file, on rank 0's clock.
#pragma once

#include <cstdint>
#include <string>

#include "weft/comm/group.h"
#include "weft/observe/trace.h"

namespace weft::train::internal {

struct TraceSteps {
  std::int64_t first = 0, last = 0;  // as metrics.jsonl counts them, both included; 0: none
};

// "steps=10:15". Throws Error(kInvalidArgument) saying what is expected.
TraceSteps parse_trace(const std::string& text);

class Tracing {
 public:
  Tracing(Group world, TraceSteps steps) : world_(std::move(world)), steps_(steps) {}

  // On rank 0: where the time line goes.
  void write_to(std::string file) { file_ = std::move(file); }

  // Null where nothing is to be recorded.
  observe::Trace* trace() { return steps_.first > 0 ? &trace_ : nullptr; }
  // Before and after each step, by its number. Collective after the last one: the ranks' spans come
  // together and rank 0 writes the file.
  void before(std::int64_t step) {
    if (step >= steps_.first && step <= steps_.last) trace_.record(true);
  }
  void after(std::int64_t step) {
    if (step == steps_.last) write();
  }
  // Collective: writes what there is, where training ends before the last step that was asked for.
  void finish() {
    if (trace_.recording()) write();
  }

 private:
  void write();

  Group world_;
  TraceSteps steps_;
  std::string file_;
  observe::Trace trace_;
};

// What to add to this rank's steady clock to get rank 0's, in nanoseconds. Collective: some
// messages between rank 0 and each other rank, where they do not share a host, and with it a clock.
std::int64_t offset_to_rank0(const Group& world);

}  // namespace weft::train::internal
