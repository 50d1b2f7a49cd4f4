// A barrier over the store, in which rank 0 finds out which ranks do not come.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::comm::internal {

class MonitoredBarrier {
 public:
  MonitoredBarrier(int rank, int size) : rank_(rank), size_(size) {}

  // Returns when all ranks have come. Throws Error(kTimeout) with the ranks that did not: the first
  // one, or all of them. `look` is called while the rank waits, and may throw.
  void run(c10d::Store& store, std::chrono::milliseconds timeout, bool names_all,
           const std::function<void()>& look);

 private:
  const int rank_, size_;
  std::uint64_t number_ = 0;  // of the next one
};

}  // namespace weft::comm::internal
