// The thread that trains a model. Autograd calls the hooks of parameters on a device on a thread of
// its own, which works for that thread: waits and communication there are those of its step.
#pragma once

#include <memory>
#include <optional>

#include "weft/observe/position/position.h"
#include "weft/observe/trace.h"

namespace weft::engine::internal {

struct Caller {
  observe::WaitAccount waits;
  std::weak_ptr<observe::Trace> trace;
};

// While it lives, this thread works for `caller`. No effect on that thread itself.
class ForCaller {
 public:
  explicit ForCaller(const Caller& caller) : waits_(caller.waits) {
    if (observe::Trace::current() != nullptr) return;
    trace_ = caller.trace.lock();
    if (trace_) use_.emplace(trace_.get(), "backward");
  }

 private:
  const observe::WaitsFor waits_;
  std::shared_ptr<observe::Trace> trace_;
  std::optional<observe::Trace::Use> use_;  // ends first
};

}  // namespace weft::engine::internal
