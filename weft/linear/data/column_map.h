// Ids of columns: the solvers hold one weight for each id, so ids must be small.
//
// If the columns of a data set are dense, a column is its own id. If they are not (a file may use
// indices 1 and 90,000,000 only), only columns that occur get an id. So the memory of the weights
// is proportional to the data, whatever the largest index is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/linear/data/sparse_rows.h"

namespace weft::linear {

// One more than the largest column, without kBiasColumn. 0: no entries.
std::uint32_t count_columns(const SparseRows& rows);
// The columns that occur, ascending, without kBiasColumn.
std::vector<std::uint32_t> used_columns(const SparseRows& rows);

class ColumnMap {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;

  ColumnMap() = default;
  // True if `columns` columns are few enough for ids of their own: at most four for each entry, or
  // 2^20.
  static bool is_dense(std::uint32_t columns, std::uint64_t entries);
  // Columns 0 … columns - 1 are their own ids.
  static ColumnMap dense(std::uint32_t columns);
  // Ids in the order of these ascending columns.
  static ColumnMap sparse(std::vector<std::uint32_t> used);
  // Gives kBiasColumn the next id.
  void add_bias();

  // Number of ids.
  std::uint32_t size() const { return columns_ + (has_bias_ ? 1 : 0); }
  // Column of an id, which is below size(). kBiasColumn for the bias.
  std::uint32_t column(std::uint32_t id) const;
  // Id of a column; kNone if it has none.
  std::uint32_t find(std::uint32_t column) const;
  // Replaces columns by their ids, and drops entries of columns without an id. The columns of each
  // row still ascend.
  void rename(SparseRows& rows) const;

 private:
  std::uint32_t columns_ = 0;  // Ids without the bias.
  bool has_bias_ = false;
  std::vector<std::uint32_t> used_;  // Sparse only: column of each id.
};

}  // namespace weft::linear
