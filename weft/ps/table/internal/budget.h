// The memory that a table may use. The rows, the index and the rows that wait for a snapshot take
// from it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "weft/base/error.h"
#include "weft/base/log.h"

namespace weft::ps::internal {

class Budget {
 public:
  // `limit` bytes; 0: no limit.
  explicit Budget(std::uint64_t limit)
      : limit_(limit > 0 ? limit : std::numeric_limits<std::uint64_t>::max()) {}

  std::uint64_t used() const { return used_; }
  bool has(std::uint64_t bytes) const { return bytes <= limit_ - used_; }
  // Throws Error(kUnavailable) if the limit does not allow it.
  void take(std::uint64_t bytes) {
    if (!has(bytes)) fail(bytes);
    used_ += bytes;
  }
  void give_back(std::uint64_t bytes) { used_ -= bytes; }

 private:
  [[noreturn]] void fail(std::uint64_t bytes) const {
    throw Error(Errc::kUnavailable, "the table is full: it uses " + std::to_string(used_) + " of " +
                                        std::to_string(limit_) + " bytes and needs " +
                                        std::to_string(bytes) +
                                        " more; evict rows, raise the limit or use more servers");
  }

  std::uint64_t limit_, used_ = 0;
};

}  // namespace weft::ps::internal
