// Relaxed atomic access to a float that several workers use.
#pragma once

#include <atomic>

namespace weft::linear::internal {

inline float load(float& value) {
  return std::atomic_ref<float>(value).load(std::memory_order_relaxed);
}
inline void store(float& value, float to) {
  std::atomic_ref<float>(value).store(to, std::memory_order_relaxed);
}

}  // namespace weft::linear::internal
