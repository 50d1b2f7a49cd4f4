// Adds the seconds of its scope to a sum, and records the scope in the trace.
#pragma once

#include <chrono>

#include "weft/base/deadline.h"
#include "weft/observe/trace.h"

namespace weft::engine::internal {

class Stopwatch {
 public:
  explicit Stopwatch(double& sum, const char* category = "update", const char* name = "gradients")
      : trace_(category, name), sum_(sum), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { sum_ += seconds_since(start_); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  const observe::TraceScope trace_;
  double& sum_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace weft::engine::internal
