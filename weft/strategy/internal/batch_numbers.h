// What both kinds of SharedBatches have in common: the numbers of Done as an array, and the limit
// of a count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "weft/base/error.h"
#include "weft/strategy/shared_batches.h"

namespace weft::strategy::internal {

inline constexpr std::size_t kDoneNumbers = sizeof(SharedBatches::Done) / sizeof(double);

inline double* numbers_of(SharedBatches::Done& done) { return reinterpret_cast<double*>(&done); }
inline const double* numbers_of(const SharedBatches::Done& done) {
  return reinterpret_cast<const double*>(&done);
}

inline void check_count(std::int64_t count) {
  WEFT_REQUIRE(count >= 0 && count < INT32_MAX,
               "the workers' batches are counted below 2^31, not " + std::to_string(count) +
                   ": use a larger batch");
}

// The end of numbers of which those below `next` are given out: after a whole batch of all workers.
inline std::int64_t whole_batches(std::int64_t next, int workers) {
  return (next + workers - 1) / workers * workers;
}

}  // namespace weft::strategy::internal
