// PackedRows: packs documents into rows of T positions. Positions and document numbers show where
// each document begins, so that attention does not cross documents.
//
//   documents  a a a a a . b b . c c c .        "." is the end token; T = 6
//   row 0      a a a a a | -> a a a a .         each token of a document but the first is a target
//                                               once; each but the last is an input once
//   row 1      c c c b b | -> c c . b .         a row takes the longest piece that fits; the rest
//                                               of the row is padding
//
// A document of more than T inputs is cut into pieces of T, whose positions begin at 0 again. The
// last pieces and the shorter documents are packed best-fit-decreasing (Ding et al., "Fewer
// truncations improve language modeling", 2024). Packing is done once and takes O(n log n) time for
// n pieces; each takes 16 bytes.
#pragma once

#include <vector>

#include "weft/data/text/rows.h"
#include "weft/data/text/token_file.h"

namespace weft::data::text {

struct PackOptions {
  std::int64_t length = 1024;  // T, the positions of a row.
  // Range of the file's tokens. Empty: all. Of a document that crosses its bounds, the part inside
  // is packed.
  Range range;
};

struct PackStats {
  std::int64_t documents = 0;  // Documents of at least two tokens.
  std::int64_t pieces = 0;
  std::int64_t rows = 0;
  std::int64_t used = 0;  // Positions with a target.
  // Mean number of targets of a row.
  double used_per_row() const {
    return rows == 0 ? 0 : static_cast<double>(used) / static_cast<double>(rows);
  }
  // Returns the fraction of all positions that is padding.
  double waste(std::int64_t length) const {
    return rows == 0 ? 0 : 1 - used_per_row() / static_cast<double>(length);
  }
};

class PackedRows : public Rows {
 public:
  // Throws Error(kInvalidArgument) for a file without an end token, a length below 1, a range
  // outside the file, and a range in which no document has two tokens (including its end token).
  PackedRows(TokenFile file, PackOptions options);

  std::int64_t size() const override { return static_cast<std::int64_t>(first_piece_.size()) - 1; }
  std::int64_t length() const override { return options_.length; }
  // Rows are the same in every epoch; the Sampler shuffles them.
  void read(std::int64_t row, std::int64_t epoch, const RowSpans& out) const override;
  const PackStats& stats() const { return stats_; }

 private:
  struct Piece {
    std::int64_t begin = 0;   // First input.
    std::int64_t length = 0;  // Number of inputs. The last target is the token after them.
  };
  std::vector<Piece> cut() const;
  void pack(const std::vector<Piece>& pieces);

  TokenFile file_;
  PackOptions options_;
  PackStats stats_;
  std::vector<Piece> pieces_;              // In the order of the rows.
  std::vector<std::int64_t> first_piece_;  // First piece of each row, then the number of pieces.
};

}  // namespace weft::data::text
