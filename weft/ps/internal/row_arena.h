// Memory for the rows of a client's outstanding requests: a part of the memory that it shares with
// the servers. First fit; for few requests at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace weft::ps::internal {

class RowArena {
 public:
  RowArena() = default;
  // `first`: its offset in the shared memory.
  RowArena(std::uint64_t first, std::uint64_t bytes) : first_(first), end_(first + bytes) {}

  // The offset of as many bytes, a multiple of 64. None: they do not fit now.
  std::optional<std::uint64_t> take(std::uint64_t bytes) {
    const std::uint64_t size = (bytes + kLine - 1) / kLine * kLine;
    std::uint64_t at = first_;
    for (const auto& [offset, end] : used_) {
      if (offset - at >= size) break;
      at = end;
    }
    if (end_ - at < size) return std::nullopt;
    used_.emplace(at, at + size);
    return at;
  }
  void give_back(std::uint64_t offset) { used_.erase(offset); }

 private:
  static constexpr std::uint64_t kLine = 64;

  std::uint64_t first_ = 0, end_ = 0;
  std::map<std::uint64_t, std::uint64_t> used_;  // offsets and ends
};

}  // namespace weft::ps::internal
