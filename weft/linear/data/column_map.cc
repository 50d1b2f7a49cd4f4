#include "weft/linear/data/column_map.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft::linear {

std::uint32_t count_columns(const SparseRows& rows) {
  std::uint32_t columns = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto row = rows.row(i);
    if (!row.empty() && row.back().column == kBiasColumn) row = row.first(row.size() - 1);
    if (!row.empty()) columns = std::max(columns, row.back().column + 1);
  }
  return columns;
}

std::vector<std::uint32_t> used_columns(const SparseRows& rows) {
  constexpr std::size_t kSortAt = 1 << 20;
  std::vector<std::uint32_t> used;
  std::size_t sorted = 0;
  const auto merge = [&] {
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    sorted = used.size();
  };
  for (const Entry& entry : rows.entries) {
    if (entry.column == kBiasColumn) continue;
    used.push_back(entry.column);
    if (used.size() >= 2 * sorted + kSortAt) merge();
  }
  merge();
  return used;
}

bool ColumnMap::is_dense(std::uint32_t columns, std::uint64_t entries) {
  constexpr std::uint64_t kFew = 1 << 20, kForEach = 4;
  return columns <= kFew || columns <= kForEach * entries;
}

ColumnMap ColumnMap::dense(std::uint32_t columns) {
  ColumnMap map;
  map.columns_ = columns;
  return map;
}

ColumnMap ColumnMap::sparse(std::vector<std::uint32_t> used) {
  WEFT_CHECK(std::adjacent_find(used.begin(), used.end(), std::greater_equal<>()) == used.end(),
             "the columns of a map do not ascend");
  ColumnMap map;
  map.columns_ = static_cast<std::uint32_t>(used.size());
  map.used_ = std::move(used);
  return map;
}

void ColumnMap::add_bias() { has_bias_ = true; }

std::uint32_t ColumnMap::column(std::uint32_t id) const {
  if (id >= columns_) return kBiasColumn;
  return used_.empty() ? id : used_[id];
}

std::uint32_t ColumnMap::find(std::uint32_t column) const {
  if (column == kBiasColumn) return has_bias_ ? columns_ : kNone;
  if (used_.empty()) return column < columns_ ? column : kNone;
  const auto at = std::lower_bound(used_.begin(), used_.end(), column);
  if (at == used_.end() || *at != column) return kNone;
  return static_cast<std::uint32_t>(at - used_.begin());
}

void ColumnMap::rename(SparseRows& rows) const {
  std::uint64_t kept = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::uint64_t begin = kept;
    for (std::uint64_t at = rows.begins[i]; at < rows.begins[i + 1]; ++at) {
      Entry entry = rows.entries[at];
      entry.column = find(entry.column);
      if (entry.column != kNone) rows.entries[kept++] = entry;
    }
    rows.begins[i] = begin;
  }
  if (!rows.begins.empty()) rows.begins.back() = kept;
  rows.entries.resize(kept);
}

}  // namespace weft::linear
