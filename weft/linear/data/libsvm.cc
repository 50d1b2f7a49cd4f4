#include "weft/linear/data/libsvm.h"

#include <algorithm>
#include <limits>

#include "weft/base/error.h"
#include "weft/base/kind/file_kind.h"
#include "weft/linear/data/internal/libsvm_parser.h"
#include "weft/linear/data/text_file.h"

namespace weft::linear {
namespace {

using internal::LibsvmParser;
using internal::LineShare;

void check(const LibsvmOptions& options) {
  WEFT_REQUIRE(options.world >= 1 && options.rank >= 0 && options.rank < options.world,
               "rank " + std::to_string(options.rank) + " is not one of " +
                   std::to_string(options.world) + " ranks");
  WEFT_REQUIRE(options.max_index < kBiasColumn, "max_index must be at most 4294967294");
  WEFT_REQUIRE(options.bias <= std::numeric_limits<float>::max(),
               "bias must be a number that fits into float32");
}

// First byte of rank r's share.
std::uint64_t share_begin(std::uint64_t bytes, const LibsvmOptions& options, int rank) {
  const auto r = static_cast<std::uint64_t>(rank), w = static_cast<std::uint64_t>(options.world);
  return bytes / w * r + bytes % w * r / w;
}

std::uint64_t count_lines(const std::string& path, std::uint64_t bytes) {
  TextFile file(path);
  std::uint64_t lines = 0;
  for (auto piece = file.next(); bytes > 0 && !piece.empty(); piece = file.next()) {
    piece = piece.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(bytes, piece.size())));
    lines += static_cast<std::uint64_t>(std::count(piece.begin(), piece.end(), '\n'));
    bytes -= piece.size();
  }
  return lines;
}

// The first byte in [from, end) at which a line begins; `end` if there is none.
std::uint64_t line_begin(TextFile& file, std::uint64_t from, std::uint64_t end) {
  if (from == 0) return 0;
  file.seek(from - 1);  // the byte before may end a line
  std::uint64_t at = from - 1;
  for (auto piece = file.next(); at < end && !piece.empty(); piece = file.next()) {
    const auto newline = piece.find('\n');
    if (newline != std::string_view::npos) return std::min(at + newline + 1, end);
    at += piece.size();
  }
  return end;
}

void read_share(TextFile& file, const std::string& path, const LibsvmOptions& options,
                SparseRows& rows) {
  WEFT_REQUIRE(options.world == 1 || file.is_regular(),
               path + " is not a file, so " + std::to_string(options.world) +
                   " ranks cannot divide it; use one rank");
  LineShare share;
  std::uint64_t begin = 0;
  if (file.is_gzip()) {
    share.rank = static_cast<std::uint64_t>(options.rank);
    share.world = static_cast<std::uint64_t>(options.world);
  } else if (options.world > 1) {
    const std::uint64_t end = share_begin(file.size(), options, options.rank + 1);
    begin = line_begin(file, share_begin(file.size(), options, options.rank), end);
    share.end = end - begin;
    share.lines_before = [path, begin] { return count_lines(path, begin); };
    file.seek(begin);
  }
  std::string_view piece = file.next();
  if (const std::size_t mark = begin == 0 ? mark_bytes(piece) : 0; mark > 0) {
    piece.remove_prefix(mark);
    // The first line begins with the mark. It stays in the share that has the first byte.
    share.end = share.end > mark ? share.end - mark : std::min<std::uint64_t>(share.end, 1);
  }
  LibsvmParser parser(path, options, std::move(share), rows);
  for (; !piece.empty(); piece = file.next()) {
    if (!parser.feed(piece)) return;
  }
  parser.finish();
}

}  // namespace

SparseRows read_libsvm(const std::string& path, const LibsvmOptions& options) {
  check(options);
  SparseRows rows;
  TextFile file(path);
  read_share(file, path, options, rows);
  return rows;
}

}  // namespace weft::linear
