// Libtorch initialises weights from one generator of the process, which ranks that are threads share.
#pragma once

#include <ATen/Context.h>

#include <cstdint>
#include <mutex>

namespace weft::train::internal {

inline std::mutex& of_the_default_generator() {
  static std::mutex mutex;
  return mutex;
}

// make(), with the default generator's numbers of `seed`. One thread after the other.
template <class Make>
auto seeded(std::uint64_t seed, Make make) {
  const std::lock_guard lock(of_the_default_generator());
  at::manual_seed(seed);
  return make();
}

}  // namespace weft::train::internal
