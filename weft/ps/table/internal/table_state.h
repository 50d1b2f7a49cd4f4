// The parts of a table: index, rows, and the snapshot that is being read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/ps/table/internal/budget.h"
#include "weft/ps/table/internal/key_index.h"
#include "weft/ps/table/internal/row_store.h"
#include "weft/ps/table/table.h"

namespace weft::ps::internal {

// A row as a snapshot has it.
struct SavedRow {
  std::uint64_t key = 0, touched = 0;
  std::uint32_t updates = 0;
  const char* values = nullptr;  // Weights and state.
};

// The format of snapshots (snapshot.h).
inline constexpr std::size_t kSnapshotHeader = 56, kBlockHeader = 8, kRowHead = 20;
std::string snapshot_header(const TableOptions& options, std::uint64_t rows, std::uint64_t clock);
// Bytes of a row, and the most rows of a block.
std::size_t row_bytes(const TableOptions& options);
std::uint32_t block_rows(const TableOptions& options);

class TableState {
 public:
  explicit TableState(const TableOptions& options);

  void pull(std::span<const std::uint64_t> keys, std::span<float> out);
  void read(std::span<const std::uint64_t> keys, std::span<float> out) const;
  void touch(std::span<const std::uint64_t> keys);
  void push(std::span<const std::uint64_t> keys, std::span<const float> gradients);
  std::uint64_t evict(std::uint64_t age, std::uint64_t most);
  std::uint64_t evict_range(std::uint64_t age, std::uint64_t first, std::uint64_t last);
  // False if the key is there already.
  bool insert(const SavedRow& row);

  void begin_snapshot();
  SnapshotState next_snapshot(std::string& out, std::size_t bytes);
  void end_snapshot() noexcept;

  TableOptions options;
  std::uint64_t clock = 0;
  Budget budget;
  KeyIndex index;

 private:
  // Keys whose index line is being fetched, and keys whose row is being fetched.
  static constexpr std::size_t kAhead = 12;

  // Calls use(i, hash, slot) for each key, in order; slot may be kNone. The memory that it needs is
  // fetched before.
  template <class Use>
  void visit(std::span<const std::uint64_t> keys, bool fetch_rows, const Use& use) const;
  // Finds the rows of all keys, as slots_, and makes those that are missing. All or none.
  void find_or_create_all(std::span<const std::uint64_t> keys);
  std::uint32_t find_or_create(std::uint64_t hash, std::uint64_t key);
  std::uint32_t add_row(std::uint64_t hash, std::uint64_t key);  // without values
  void remove(std::uint64_t key, std::uint32_t slot) noexcept;
  void remove_created() noexcept;
  void initial_weights(std::uint64_t key, float* to) const;
  RowValues values_of(RowHeader& row) const;
  bool is_old(const RowHeader& row, std::uint64_t age) const {
    return row.next == RowHeader::kLive && clock - row.touched > age;
  }

  void check_finite(std::span<const std::uint64_t> keys, std::span<const float> gradients) const;
  void check_sums(std::span<const std::uint64_t> keys) const;
  void sum_duplicates(std::span<const std::uint64_t> keys, std::span<const float> gradients);
  void add_duplicate(std::uint32_t first, std::uint32_t at, std::span<const float> gradients);

  // Copies a row for the snapshot if that has not read it yet. Called before each change.
  void before_change(RowHeader& row) noexcept {
    if (snapshot_ && row.epoch != epoch_) keep_for_snapshot(row);
  }
  void keep_for_snapshot(RowHeader& row) noexcept;
  void append_row(std::string& out, RowHeader& row) const;
  bool append_block(std::string& out);

  std::size_t row_floats_;
  RowStore rows_;
  std::uint32_t evict_at_ = 0;

  // Of a push.
  std::vector<std::uint64_t> created_;          // Keys of rows that the call made.
  std::vector<std::uint64_t> unique_;           // Keys without repetitions.
  std::vector<std::uint32_t> firsts_, slots_;   // Of each of them: its first place, its row.
  std::vector<std::uint32_t> places_, sum_of_;  // Hash table of places; number of a key's sum.
  std::vector<float> sums_;

  bool snapshot_ = false, snapshot_failed_ = false, header_sent_ = false;
  std::uint32_t epoch_ = 0, cursor_ = 0, end_ = 0;
  std::uint64_t snapshot_rows_ = 0, snapshot_clock_ = 0;
  std::string saved_;           // Rows that changed before they were read.
  std::size_t saved_read_ = 0;  // Bytes of them that were read.
};

}  // namespace weft::ps::internal
