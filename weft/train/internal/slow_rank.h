// Makes a rank slow on purpose, for tests and benchmarks of slow ranks.
//
//   WEFT_SLOW_RANK=3:4   rank 3 takes four times as long for each forward and backward: it sleeps
#pragma once

#include <chrono>
#include <cstdint>

namespace weft::train::internal {

// The factor for this rank by WEFT_SLOW_RANK; 1 without it. Throws Error(kBadConfig) for another
// form, or a factor below 1.
double slowdown_of(int rank);

// Sleeps at the end of its scope so that the scope takes `factor` times as long as it has computed.
// Time that it has waited for other ranks does not count.
class SlowRank {
 public:
  explicit SlowRank(double factor);
  ~SlowRank();
  SlowRank(const SlowRank&) = delete;
  SlowRank& operator=(const SlowRank&) = delete;

 private:
  const double factor_;
  const std::chrono::steady_clock::time_point start_;
  const std::int64_t waited_ns_;
};

}  // namespace weft::train::internal
