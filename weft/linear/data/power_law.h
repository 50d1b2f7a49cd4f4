// Generated data for benches and tests: rows of a power law, like the words of texts.
//
// Column popularity falls as 1 / (place + 10); places are scattered over the indices. A row has
// unit length. Its label is drawn from a logistic model with hidden normal weights. Each row
// depends on (seed, row) only, so ranks can generate their parts.
#pragma once

#include <cstdint>
#include <string>

#include "weft/linear/data/sparse_rows.h"

namespace weft::linear {

struct PowerLaw {
  std::uint64_t rows = 500'000;
  std::uint32_t columns = 47'000;
  std::uint32_t row_entries = 75;
  // Spread of the margins. A larger one makes labels less random.
  double margin = 8;
  std::uint64_t seed = 1;
};

// Rows [begin, end) with labels 1 and -1. Throws Error(kInvalidArgument) for a range outside the
// rows, and if row_entries is above a fifth of the columns.
SparseRows generate(const PowerLaw& law, std::uint64_t begin, std::uint64_t end);

// Writes rows as a LIBSVM file, atomically. Values are written so that they read back as the same
// float32. A constant feature (kBiasColumn) is not written: LibsvmOptions::bias appends it again.
// Throws as base/file.h says.
void write_libsvm(const SparseRows& rows, const std::string& path);

}  // namespace weft::linear
