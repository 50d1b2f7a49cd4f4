// A table: finds and makes rows, updates them, evicts them.
//
// Each key of the index has one live row. A call that fails leaves the rows as they were. The
// snapshot is told of each change of a row before it is made. One thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/ps/table/internal/budget.h"
#include "weft/ps/table/internal/gradient_sums.h"
#include "weft/ps/table/internal/key_index.h"
#include "weft/ps/table/internal/row_store.h"
#include "weft/ps/table/internal/table_snapshot.h"
#include "weft/ps/table/table.h"

namespace weft::ps::internal {

// A row as a snapshot has it.
struct SavedRow {
  std::uint64_t key = 0, touched = 0;
  std::uint32_t updates = 0;
  const char* values = nullptr;  // Weights and state.
};

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

  void begin_snapshot() { snapshot_.begin(index.size(), clock); }
  SnapshotState next_snapshot(std::string& out, std::size_t bytes) {
    return snapshot_.next(out, bytes);
  }
  void end_snapshot() noexcept { snapshot_.end(); }

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

  std::size_t row_floats_;
  RowStore rows_;
  TableSnapshot snapshot_;
  std::uint32_t evict_at_ = 0;
  std::vector<std::uint64_t> created_;  // Keys of rows that the call made.
  std::vector<std::uint32_t> slots_;    // Rows of the call's keys.
  GradientSums sums_;
};

}  // namespace weft::ps::internal
