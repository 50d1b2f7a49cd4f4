#include "weft/data/text/packed_rows.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "weft/base/error.h"

namespace weft::data::text {

PackedRows::PackedRows(TokenFile file, PackOptions options)
    : file_(std::move(file)), options_(options) {
  Range& range = options_.range;
  if (range.size() == 0) range = {0, file_.size()};
  WEFT_REQUIRE(options_.length >= 1 && options_.length <= (std::int64_t{1} << 30),
               "PackedRows: a length of " + std::to_string(options_.length));
  WEFT_REQUIRE(range.begin >= 0 && range.begin <= range.end && range.end <= file_.size(),
               file_.path() + ": tokens " + std::to_string(range.begin) + " to " +
                   std::to_string(range.end) + " of " + std::to_string(file_.size()));
  WEFT_REQUIRE(file_.info().end_token.has_value(),
               file_.path() + " names no end token, so that it has no documents to pack");
  const std::vector<Piece> pieces = cut();
  WEFT_REQUIRE(!pieces.empty(),
               file_.path() + ": no document has two tokens, so that there is nothing to predict");
  pack(pieces);
}

// Cuts the documents, in the file's order, into pieces. A document of L tokens has L-1 inputs.
std::vector<PackedRows::Piece> PackedRows::cut() const {
  std::vector<Piece> pieces;
  for (std::int64_t begin = options_.range.begin; begin < options_.range.end;) {
    const std::int64_t end =
        std::min(file_.find_end(begin, options_.range.end) + 1, options_.range.end);
    for (std::int64_t at = begin; at < end - 1; at += options_.length)
      pieces.push_back({at, std::min(options_.length, end - 1 - at)});
    begin = end;
  }
  return pieces;
}

void PackedRows::pack(const std::vector<Piece>& pieces) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return pieces[a].length > pieces[b].length;
  });
  std::vector<std::vector<std::size_t>> rows;
  std::map<std::int64_t, std::vector<std::size_t>> open;  // Rows by their free positions.
  for (const std::size_t piece : order) {
    const std::int64_t length = pieces[piece].length;
    const auto best = open.lower_bound(length);
    std::size_t row = rows.size();
    std::int64_t left = options_.length - length;
    if (best != open.end()) {
      row = best->second.back();
      left = best->first - length;
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    } else {
      rows.emplace_back();
    }
    rows[row].push_back(piece);
    if (left > 0) open[left].push_back(row);
  }
  pieces_.reserve(pieces.size());
  for (const auto& row : rows) {
    first_piece_.push_back(static_cast<std::int64_t>(pieces_.size()));
    for (const std::size_t piece : row) pieces_.push_back(pieces[piece]);
  }
  first_piece_.push_back(static_cast<std::int64_t>(pieces_.size()));
  stats_.pieces = static_cast<std::int64_t>(pieces.size());
  stats_.rows = static_cast<std::int64_t>(rows.size());
  for (const Piece& piece : pieces) {
    stats_.used += piece.length;
    const bool starts = piece.begin == options_.range.begin ||
                        file_.find_end(piece.begin - 1, piece.begin) == piece.begin - 1;
    stats_.documents += starts ? 1 : 0;
  }
}

void PackedRows::read(std::int64_t row, std::int64_t, const RowSpans& out) const {
  WEFT_REQUIRE(row >= 0 && row < size(),
               "PackedRows: row " + std::to_string(row) + " of " + std::to_string(size()));
  std::size_t at = 0;
  std::int64_t document = 0;
  for (std::int64_t i = first_piece_[static_cast<std::size_t>(row)];
       i < first_piece_[static_cast<std::size_t>(row) + 1]; ++i) {
    const Piece& piece = pieces_[static_cast<std::size_t>(i)];
    const auto length = static_cast<std::size_t>(piece.length);
    file_.read(piece.begin, out.inputs.subspan(at, length));
    file_.read(piece.begin + 1, out.targets.subspan(at, length));
    const auto positions = out.positions.subspan(at, length);
    std::iota(positions.begin(), positions.end(), 0);
    std::fill_n(out.documents.begin() + static_cast<std::ptrdiff_t>(at), length, document++);
    at += length;
  }
  const auto pad = [&](std::span<std::int64_t> values, std::int64_t with) {
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(at), values.end(), with);
  };
  pad(out.inputs, 0);
  pad(out.targets, kNoTarget);
  pad(out.positions, 0);
  pad(out.documents, -1);
}

}  // namespace weft::data::text
