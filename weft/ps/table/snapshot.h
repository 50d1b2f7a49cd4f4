// Snapshots of a table as a stream of bytes, and a reader that makes the table again with the same
// bits.
//
// Format, little-endian:
//
//   header   "WEFTTAB1", u32 row_floats, u32 state arrays, u32 rule, f32 initial_range, u64 seed,
//            u64 rows, u64 clock, u32 0, u32 crc32c of what is before it
//   block    u32 rows (at least 1), u32 crc32c of the rows,
//            rows: u64 key, u64 touched, u32 updates, f32 weights and state
//   end      u32 0, u32 0
//
// A block has at most 64 KiB of rows, or one row. Rows have no order.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

#include "weft/ps/table/table.h"

namespace weft::ps {

// Writes a snapshot of the table as it is now. Throws Error(kUnavailable) if the stream fails.
void save(Table& table, std::ostream& stream);

// Reads the bytes of a snapshot in pieces of any size into a new table. The memory that it takes
// grows with the bytes that it has read, never with a number that they claim.
class TableReader {
 public:
  using Filter = std::function<bool(std::uint64_t key)>;

  // `options` must have the row_floats, the kind of rule, the number of state arrays, the
  // initial_range and the seed of the table that was saved. `filter` chooses the keys: a server
  // that gets a part of another's range reads the other's snapshot. Throws as Table().
  explicit TableReader(const TableOptions& options, Filter filter = {});

  // Throws Error(kCorrupt) if the bytes are no snapshot or are damaged, and Error(kInvalidArgument)
  // if the snapshot is of other options. Throws Error(kUnavailable) if the rows do not fit.
  void feed(std::string_view bytes);
  // The table, after all bytes. Throws Error(kCorrupt) if the snapshot is truncated.
  Table finish();

 private:
  enum class Part { kHeader, kBlock, kRows, kDone };

  std::size_t wanted() const;
  void take(std::string_view part);
  void take_header(std::string_view part);
  void take_block(std::string_view part);
  void take_rows(std::string_view part);

  Table table_;
  Filter filter_;
  Part part_ = Part::kHeader;
  std::string pending_;  // Bytes of a part that is not complete.
  std::uint64_t expected_ = 0, read_ = 0, bytes_ = 0;
  std::uint32_t block_rows_ = 0, block_crc_ = 0;
};

// Reads a snapshot, which must fill the rest of the stream. Throws as TableReader, and
// Error(kUnavailable) if the stream fails.
Table restore(const TableOptions& options, std::istream& stream, TableReader::Filter filter = {});

}  // namespace weft::ps
