// From rows divided over ranks to columns divided over ranks, for solvers that need whole columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/linear/data/sparse_rows.h"

namespace weft::linear {

// Rank r of K owns columns r, r + K, r + 2K, …: neighboring columns, which are often similarly
// popular, go to different ranks.
struct ColumnShare {
  std::uint32_t rank = 0, ranks = 1;

  std::uint32_t count(std::uint32_t columns) const {
    return columns / ranks + (columns % ranks > rank ? 1 : 0);
  }
  std::uint32_t column(std::uint32_t place) const { return place * ranks + rank; }
};

// Entries of these rows for each owner, as bytes for an all-to-all. The first row has this number
// in the whole data. 12 bytes an entry.
std::vector<std::string> pack_columns(const SparseRows& rows, std::uint32_t first_row, int ranks);

// Columns from what each rank packed for this owner, by rank: "row" i of the result is the owner's
// column i, and Entry::column is the number of a row, ascending. It has no labels but zeros. Throws
// Error(kCorrupt) for bytes that pack_columns() did not make.
SparseRows unpack_columns(const std::vector<std::string>& packed, std::uint32_t count);

}  // namespace weft::linear
