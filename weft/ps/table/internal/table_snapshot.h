// The snapshot of a table that is being read: copy on write.
//
// It has the rows as they were at begin(). A row is read from the table, or from the copy that was
// made before its first change. A copy that does not fit ends the snapshot, never the change. For
// the thread of the table.
#pragma once

#include <cstdint>
#include <string>

#include "weft/ps/table/internal/budget.h"
#include "weft/ps/table/internal/row_store.h"
#include "weft/ps/table/table.h"

namespace weft::ps::internal {

// The format of snapshots (snapshot.h).
inline constexpr std::size_t kSnapshotHeader = 56, kBlockHeader = 8, kRowHead = 20;
std::string snapshot_header(const TableOptions& options, std::uint64_t rows, std::uint64_t clock);
// Bytes of a row, and the most rows of a block.
std::size_t row_bytes(const TableOptions& options);
std::uint32_t block_rows(const TableOptions& options);

class TableSnapshot {
 public:
  // Refers to the parts of the table.
  TableSnapshot(const TableOptions& options, const RowStore& rows, Budget& budget)
      : options_(options), rows_(rows), budget_(budget) {}

  // `rows`, `clock`: number of rows and time of the table now. Ends the snapshot before.
  void begin(std::uint64_t rows, std::uint64_t clock);
  // As Table::next_snapshot().
  SnapshotState next(std::string& out, std::size_t bytes);
  void end() noexcept;

  // RowHeader::epoch of a row that is made now.
  std::uint32_t epoch() const { return epoch_; }
  // Copies a row that was not read yet. Called before each change of a row.
  void before_change(RowHeader& row) noexcept {
    if (is_begun_ && row.epoch != epoch_) save(row);
  }

 private:
  void save(RowHeader& row) noexcept;
  void append_row(std::string& out, RowHeader& row) const;
  bool append_block(std::string& out);

  const TableOptions& options_;
  const RowStore& rows_;
  Budget& budget_;
  bool is_begun_ = false, has_failed_ = false, header_sent_ = false;
  std::uint32_t epoch_ = 0, cursor_ = 0, end_ = 0;
  std::uint64_t row_count_ = 0, clock_ = 0;
  std::string saved_;           // Rows that changed before they were read.
  std::size_t saved_read_ = 0;  // Bytes of them that were read.
};

}  // namespace weft::ps::internal
