// Requests for rows of embedding tables, as bytes.
//
//   push:  u64 number of keys, u64 0 │ keys, up to a multiple of 16 bytes │ values
//   pull:  the same without values
//
// Keys and values are aligned where the bytes are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::ps::internal {

// Bytes before the values.
std::uint64_t rows_head_bytes(std::uint64_t keys);
// Writes them to memory of this size.
void write_rows_head(std::span<const std::uint64_t> keys, char* to);

// The keys of a request, and what follows them.
class RowKeys {
 public:
  // Refers to the bytes, which must stay. Throws Error(kCorrupt) for malformed ones.
  explicit RowKeys(std::string_view bytes);
  RowKeys(const RowKeys&) = delete;
  RowKeys& operator=(const RowKeys&) = delete;

  std::span<const std::uint64_t> keys() const { return keys_; }
  std::string_view values() const { return values_; }

 private:
  std::span<const std::uint64_t> keys_;
  std::vector<std::uint64_t> copy_;  // of keys that are not aligned
  std::string_view values_;
};

}  // namespace weft::ps::internal
