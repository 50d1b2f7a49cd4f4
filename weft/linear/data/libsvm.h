// Reads LIBSVM files (also called svmlight), plain or compressed by gzip:
//
//   +1 3:0.5 17:1.25     # label, then index:value with ascending indices from 1; a comment
//
// Each rank reads its own part of the file. The reader is a stream: it holds one piece of 1 MiB and
// the rows themselves. Its memory grows with the data that it has read, never with an index or a
// length that the file claims.
#pragma once

#include <cstdint>
#include <string>

#include "weft/linear/data/sparse_rows.h"

namespace weft::linear {

struct LibsvmOptions {
  // This rank's part: the lines that begin in its share of the bytes. A gzip file has no such
  // shares: every rank inflates it and keeps blocks of 64 lines in turn.
  int rank = 0, world = 1;
  // Largest accepted index. A larger one is most likely damage. At most 2^32 - 2.
  std::uint32_t max_index = 100'000'000;
  // True: the file's indices count from 0, not from 1.
  bool zero_based = false;
  // Value of a constant feature that is appended to each row, in column kBiasColumn. Below 0: none.
  double bias = -1;
  // Most memory that the rows may take, in bytes. 0: no limit.
  std::uint64_t max_bytes = 0;
};

// Reads the rows of this rank, in the order of the file. Zeros are not stored. Lines without words,
// comments (from # to the end of the line), CRLF, and UTF-8's byte order mark at the start are
// accepted; a rank may get no row.
//
// Throws Error(kInvalidArgument) if the file cannot be opened or an option is out of range, and
// for a pipe with several ranks. Throws Error(kCorrupt), in the form FILE:LINE:COLUMN: reason, for:
// - a label or value that is no finite number, or a value that float32 cannot hold;
// - an index that is negative, 0, above max_index, out of order, or twice in a row;
// - words that are not index:value, `qid:`, a word above 512 bytes, several labels in a row;
// - damaged or truncated gzip data;
// - files of another kind: a Git LFS pointer, UTF-16, an archive.
// Throws Error(kUnavailable) if the rows need more than max_bytes.
SparseRows read_libsvm(const std::string& path, const LibsvmOptions& options = {});

}  // namespace weft::linear
