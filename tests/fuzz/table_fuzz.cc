// Snapshots of embedding tables: in pieces of any size, with the given and with correct checksums.
#include <algorithm>
#include <sstream>

#include "tests/fuzz/fuzz.h"
#include "weft/base/crc32c.h"
#include "weft/ps/table/snapshot.h"

using weft::Errc;
using weft::fuzz::accepts;
using weft::fuzz::check;
using weft::ps::RowRule;
using weft::ps::Table;
using weft::ps::TableOptions;
using weft::ps::TableReader;

namespace {

constexpr std::size_t kHeader = 56, kBlock = 8, kRow = 20;

TableOptions options_of(std::uint8_t flags) {
  const RowRule rules[] = {weft::ps::Add{}, weft::ps::Adagrad{}, weft::ps::Ftrl{}};
  return {.row_floats = 2, .rule = rules[flags % 3], .max_bytes = std::uint64_t{4} << 20};
}

void put(std::string& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// Makes the checksums of the header and of the blocks right, as far as the bytes go.
std::string with_checksums(std::string bytes, const TableOptions& options) {
  if (bytes.size() < kHeader) return bytes;
  put(bytes, kHeader - 4, weft::crc32c(bytes.data(), kHeader - 4));
  const std::size_t row =
      kRow + 8 * static_cast<std::size_t>(1 + weft::ps::state_arrays(options.rule));
  for (std::size_t at = kHeader; at + kBlock <= bytes.size();) {
    std::uint32_t rows = 0;
    std::memcpy(&rows, bytes.data() + at, sizeof rows);
    if (rows == 0 || rows > (bytes.size() - at - kBlock) / row) break;
    put(bytes, at + 4, weft::crc32c(bytes.data() + at + kBlock, rows * row));
    at += kBlock + rows * row;
  }
  return bytes;
}

// The table of the bytes, saved again. Empty if they are refused.
std::string read(std::string_view bytes, std::size_t piece, const TableOptions& options) {
  std::string saved;
  accepts({Errc::kCorrupt, Errc::kInvalidArgument}, [&] {
    TableReader reader(options);
    for (std::string_view rest = bytes; !rest.empty();
         rest.remove_prefix(std::min(piece, rest.size())))
      reader.feed(rest.substr(0, piece));
    Table table = reader.finish();
    check(table.rows() <= bytes.size() / kRow, "rows come from bytes");
    std::ostringstream stream;
    save(table, stream);
    saved = stream.str();
  });
  return saved;
}

}  // namespace

void weft::fuzz::one_input(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const auto flags = bytes.number<std::uint8_t>(), piece = bytes.number<std::uint8_t>();
  const TableOptions options = options_of(flags);
  const std::string given(bytes.rest());
  const std::string text = (flags & 128) != 0 ? with_checksums(given, options) : given;
  const std::string whole = read(text, text.size() + 1, options);
  check(read(text, 1 + piece, options) == whole, "the pieces do not change the table");
  if (!whole.empty())
    check(read(whole, whole.size(), options) == whole, "a saved table is read as the same table");
}
