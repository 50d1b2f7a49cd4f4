#include "weft/net/tcp/internal/zero_copy_sends.h"

#include <algorithm>

namespace weft::net::internal {

void ZeroCopySends::count_sent() {
  ++sent_;
  refusals_ = 0;
}

void ZeroCopySends::refused() {
  if (++refusals_ >= kRefusals && mode_ == ZeroCopy::kWhereItHelps) on_ = false;
}

void ZeroCopySends::count_completed(std::uint32_t first, std::uint32_t last, bool copied) {
  const std::uint64_t begin = completed_ + (first - static_cast<std::uint32_t>(completed_));
  const std::uint64_t end = begin + (last - first) + 1;
  WEFT_CHECK(end <= sent_, "the kernel reported a send that was not made");
  if (copied && mode_ == ZeroCopy::kWhereItHelps) on_ = false;
  ahead_.emplace_back(begin, end);
  const auto next = [&] {
    return std::find_if(ahead_.begin(), ahead_.end(),
                        [&](const auto& range) { return range.first == completed_; });
  };
  for (auto range = next(); range != ahead_.end(); range = next()) {
    completed_ = range->second;
    ahead_.erase(range);
  }
}

}  // namespace weft::net::internal
