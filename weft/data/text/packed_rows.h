// Documents packed into rows of T positions, without one that sees another (positions and document
// numbers say where each begins).
//
//   documents  a a a a a . b b . c c c .        "." is the end token; T = 6
//   row 0      a a a a a | -> a a a a .         each token but a document's first is a target once,
//                                               each but its last an input once
//   row 1      c c c b b | -> c c . b .         rows are filled with the longest piece that still
//                                               fits; what stays open is padding
//
// A document of more than T inputs is cut into pieces of T, whose positions begin at 0 again. The
// last pieces and the shorter documents are packed best-fit-decreasing (Ding et al., "Fewer
// truncations improve language modeling", 2024). O(n log T) for n pieces, 16 bytes each; done once.
#pragma once

#include <vector>

#include "weft/data/text/rows.h"
#include "weft/data/text/token_file.h"

namespace weft::data::text {

struct PackOptions {
  std::int64_t length = 1024;  // T
  // of the file's tokens; empty: all. A document that it cuts is taken as far as it lies within.
  Range range;
};

struct PackStats {
  std::int64_t documents = 0;
  std::int64_t pieces = 0;
  std::int64_t rows = 0;
  std::int64_t used = 0;  // positions with a target
  // The part of all positions that is padding.
  double waste(std::int64_t length) const {
    return rows == 0 ? 0
                     : 1 - static_cast<double>(used) /
                               (static_cast<double>(rows) * static_cast<double>(length));
  }
};

class PackedRows : public Rows {
 public:
  // Throws Error(kInvalidArgument) for a file without an end token, a length below 1, a range
  // outside the file, or one in which no document has two tokens (its end counted).
  PackedRows(TokenFile file, PackOptions options);

  std::int64_t size() const override { return static_cast<std::int64_t>(first_piece_.size()) - 1; }
  std::int64_t length() const override { return options_.length; }
  // The epoch is of no matter: rows are the same, their order is the Sampler's.
  void read(std::int64_t row, std::int64_t epoch, const RowSpans& out) const override;
  const PackStats& stats() const { return stats_; }

 private:
  struct Piece {
    std::int64_t begin = 0;   // first input
    std::int64_t length = 0;  // inputs; the target of the last is the token behind it
  };
  std::vector<Piece> cut() const;
  void pack(const std::vector<Piece>& pieces);

  TokenFile file_;
  PackOptions options_;
  PackStats stats_;
  std::vector<Piece> pieces_;              // in the order of the rows
  std::vector<std::int64_t> first_piece_;  // of each row, and the end
};

}  // namespace weft::data::text
