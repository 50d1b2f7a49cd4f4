// What a store process knows of the store: for tests, and for people who look for a fault.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::store {

struct StoreStatus {
  std::uint32_t node = 0;               // whose store process answers
  std::optional<std::uint32_t> leader;  // node of the leader; none if it knows none
  std::uint64_t term = 0;               // elections so far
  std::vector<std::uint32_t>
      voters;  // nodes that decide, as they joined; empty: it has not joined the store
  std::vector<std::uint32_t> members;  // all nodes
  std::uint64_t log_entries = 0;       // committed so far
  // True if the voters decide after the node is lost. The voters' order is that of joining.
  bool decides_without(std::uint32_t lost) const;
  bool operator==(const StoreStatus&) const = default;
};

namespace internal {
std::string encode(const StoreStatus& status);
// Throws Error(kCorrupt).
StoreStatus decode_status(std::string_view bytes);
}  // namespace internal

}  // namespace weft::store
