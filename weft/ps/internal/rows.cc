#include "weft/ps/internal/rows.h"

#include <cstring>

#include "weft/net/stream/bytes.h"

namespace weft::ps::internal {
namespace {

constexpr std::uint64_t kAlign = 16;

std::uint64_t padded(std::uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

std::uint64_t rows_head_bytes(std::uint64_t keys) {
  return kAlign + padded(sizeof(std::uint64_t) * keys);
}

void write_rows_head(std::span<const std::uint64_t> keys, char* to) {
  std::memset(to, 0, rows_head_bytes(keys.size()));
  const std::uint64_t count = keys.size();
  std::memcpy(to, &count, sizeof count);
  if (count > 0) std::memcpy(to + kAlign, keys.data(), keys.size_bytes());
}

RowKeys::RowKeys(std::string_view bytes) {
  net::internal::ByteReader in(bytes);
  const auto count = in.take<std::uint64_t>();
  in.take<std::uint64_t>();
  const std::string_view keys = in.take_view(count, sizeof(std::uint64_t));
  in.take_view(padded(keys.size()) - keys.size(), 1);
  values_ = bytes.substr(bytes.size() - in.left());
  if (count == 0) return;
  if (reinterpret_cast<std::uintptr_t>(keys.data()) % alignof(std::uint64_t) == 0) {
    keys_ = {reinterpret_cast<const std::uint64_t*>(keys.data()), static_cast<std::size_t>(count)};
    return;
  }
  copy_.resize(static_cast<std::size_t>(count));
  std::memcpy(copy_.data(), keys.data(), keys.size());
  keys_ = copy_;
}

}  // namespace weft::ps::internal
