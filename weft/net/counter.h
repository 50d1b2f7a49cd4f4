// Counts bytes on paths where an atomic read-modify-write would be too slow.
#pragma once

#include <atomic>
#include <cstdint>

namespace weft::net {

class Counter {
 public:
  // Costs a load and a store. One thread at a time; otherwise counts are lost.
  void add(std::uint64_t count) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
  }
  // For a counter that several threads increase. Do not mix with add().
  void add_from_any_thread(std::uint64_t count) noexcept {
    value_.fetch_add(count, std::memory_order_relaxed);
  }
  // Any thread may call it.
  std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

}  // namespace weft::net
