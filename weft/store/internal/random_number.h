// A random number of the system, not 0.
#pragma once

#include <sys/random.h>

#include <cstdint>

#include "weft/base/error.h"

namespace weft::store::internal {

inline std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    throw Error(Errc::kUnavailable, "the system gives no random bytes");
  return number | 1;
}

}  // namespace weft::store::internal
