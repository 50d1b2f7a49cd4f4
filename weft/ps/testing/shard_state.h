// The whole state of a shard as bytes, with the rows of its tables in the order of their keys. It
// is equal on servers that applied the same commands, whatever their past.
#pragma once

#include <cstring>
#include <map>
#include <sstream>
#include <string>

#include "weft/ps/internal/shard.h"
#include "weft/ps/table/snapshot.h"

namespace weft::ps::testing {

// Each row by its key: time, pushes, weights and state. The format is that of table/snapshot.h.
inline std::map<std::uint64_t, std::string> rows_of(Table& table) {
  std::ostringstream stream;
  save(table, stream);
  const std::string bytes = stream.str();
  constexpr std::size_t kHeader = 56, kBlock = 8, kRow = 20;
  const auto floats = static_cast<std::size_t>(table.options().row_floats);
  const std::size_t arrays = 1 + static_cast<std::size_t>(state_arrays(table.options().rule));
  const std::size_t row = kRow + sizeof(float) * floats * arrays;
  std::map<std::uint64_t, std::string> rows;
  for (std::size_t at = kHeader;;) {
    std::uint32_t count = 0;
    std::memcpy(&count, bytes.data() + at, sizeof count);
    if (count == 0) return rows;
    at += kBlock;
    for (; count > 0; --count, at += row) {
      std::uint64_t key = 0;
      std::memcpy(&key, bytes.data() + at, sizeof key);
      rows[key] = bytes.substr(at, row);
    }
  }
}

inline std::string state_of(const internal::Shard& shard) {
  std::string state = shard.snapshot_without_rows();
  for (std::uint32_t table = 0; table < shard.tables().size(); ++table)
    for (const auto& [key, row] : rows_of(shard.tables().table(table))) state += row;
  return state;
}

// What kLoad takes.
inline std::string save(internal::Shard& shard) {
  std::string saved;
  const auto put = [&](const std::string& piece) {
    const std::uint64_t size = piece.size();
    saved.append(reinterpret_cast<const char*>(&size), sizeof size).append(piece);
  };
  put(shard.begin_save());
  while (const auto rows = shard.next_rows()) put(*rows);
  return saved;
}

}  // namespace weft::ps::testing
