// Ranges of pages of a region: in the order of their offsets, none of them adjacent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::net::internal {

class PageRanges {
 public:
  struct Range {
    std::uint64_t at;  // offset
    std::uint64_t bytes;
    std::uint64_t end() const { return at + bytes; }
  };

  bool empty() const { return ranges_.empty(); }
  auto begin() const { return ranges_.begin(); }
  auto end() const { return ranges_.end(); }
  const Range& back() const { return ranges_.back(); }
  void pop_back() { ranges_.pop_back(); }

  // Adds a range that overlaps no other one.
  void add(std::uint64_t at, std::uint64_t bytes) {
    auto next =
        std::lower_bound(ranges_.begin(), ranges_.end(), at,
                         [](const Range& range, std::uint64_t to) { return range.at < to; });
    const bool joins_next = next != ranges_.end() && at + bytes == next->at;
    const bool joins_previous = next != ranges_.begin() && (next - 1)->end() == at;
    if (joins_previous) {
      (next - 1)->bytes += bytes + (joins_next ? next->bytes : 0);
      if (joins_next) ranges_.erase(next);
    } else if (joins_next) {
      *next = {at, bytes + next->bytes};
    } else {
      ranges_.insert(next, {at, bytes});
    }
  }

  // Takes the start of the first range that has so many bytes. Returns its offset.
  std::optional<std::uint64_t> take(std::uint64_t bytes) {
    const auto found = std::find_if(ranges_.begin(), ranges_.end(),
                                    [&](const Range& range) { return range.bytes >= bytes; });
    if (found == ranges_.end()) return std::nullopt;
    const std::uint64_t at = found->at;
    if (found->bytes == bytes) {
      ranges_.erase(found);
    } else {
      *found = {at + bytes, found->bytes - bytes};
    }
    return at;
  }

 private:
  std::vector<Range> ranges_;
};

}  // namespace weft::net::internal
