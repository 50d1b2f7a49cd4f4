#include "weft/net/tcp/internal/loans.h"

#include <algorithm>

namespace weft::net::internal {

void Loans::lent() {
  ++made_;
  refusals_ = 0;
}

void Loans::refused() {
  if (++refusals_ >= kRefusals && mode_ == ZeroCopy::kWhereItHelps) on_ = false;
}

void Loans::returned(std::uint32_t first, std::uint32_t last, bool copied) {
  const std::uint64_t begin = ended_ + (first - static_cast<std::uint32_t>(ended_));
  const std::uint64_t end = begin + (last - first) + 1;
  WEFT_CHECK(end <= made_, "the kernel returns a send that was not made");
  if (copied && mode_ == ZeroCopy::kWhereItHelps) on_ = false;
  ahead_.emplace_back(begin, end);
  const auto next = [&] { return std::find_if(ahead_.begin(), ahead_.end(), [&](const auto& range) { return range.first == ended_; }); };
  for (auto range = next(); range != ahead_.end(); range = next()) {
    ended_ = range->second;
    ahead_.erase(range);
  }
}

}  // namespace weft::net::internal
