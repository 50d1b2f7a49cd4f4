// For tests and benches: counts the bytes of tensors that a thread has made and not freed. Not
// installed.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace weft::parallel {

// Counts from construction on, as libtorch's CPU allocator reports on this thread. Memory freed by
// another thread stays counted.
class TensorMeter {
 public:
  std::int64_t live() const { return count_->live; }
  std::int64_t peak() const { return count_->peak; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    std::int64_t live = 0, peak = 0;
    void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                           c10::Device) override {
      live += bytes;
      peak = std::max(peak, live);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, count_};
};

}  // namespace weft::parallel
