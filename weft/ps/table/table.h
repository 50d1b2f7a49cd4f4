// Sparse embedding table of one shard of a parameter server: rows of float32 under 64-bit keys.
//
// A row is made when it is first touched. Its first weights are a pure function of the seed and the
// key, so every server makes the same row. The server applies an update rule to each pushed row
// (rule.h). Up to 4 billion rows; tried with 10^8.
//
//   Table table({.row_floats = 64, .rule = Adagrad{}, .initial_range = 0.01});
//   table.set_clock(step);
//   table.pull(keys, weights);      // keys.size() * 64 floats
//   table.push(keys, gradients);
//   table.evict(1000);              // rows that were not touched for more than 1,000 ticks
//
// Memory. A row takes 32 bytes, its weights and its state, up to a multiple of 32 bytes; the index
// takes about 25 bytes a row. Growth copies no rows: rows and index grow in mapped chunks. With a
// folder, they lie in files there, so that the operating system can write them out of the memory.
//
// Cost, one thread, rows of 64 floats: table_bench.cc. A pull or push of many keys fetches the rows
// of several keys at once, so prefer large batches.
//
// Threads: one thread at a time may use a table. Different tables are independent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "weft/ps/table/rule.h"

namespace weft::ps {

namespace internal {
class TableState;
}

struct TableOptions {
  static constexpr std::int64_t kMaxFloats = std::int64_t{1} << 20;

  std::int64_t row_floats = 0;  // Weights of a row, 1 to kMaxFloats.
  RowRule rule = Add{};
  // New rows have weights uniform in [-initial_range, initial_range), by Philox at (seed, stream
  // "ptab", key). 0: zeros.
  float initial_range = 0;
  std::uint64_t seed = 0;
  // Most bytes of rows, index and rows that wait for a snapshot. 0: no limit. Pages of memory and
  // chunks of files are up to 64 MiB more.
  std::uint64_t max_bytes = 0;
  std::string folder;  // For files that hold the rows. Empty: anonymous memory.
};

// Throws Error(kInvalidArgument) for options out of range. Does not look at the folder.
void check(const TableOptions& options);

// The next piece of a snapshot.
enum class SnapshotState { kMore, kDone };

class Table {
 public:
  // Throws Error(kInvalidArgument) for options out of range, and for a folder that does not exist
  // or cannot be written. Throws Error(kUnavailable) if max_bytes is too small for an empty table
  // (256 KiB), and if there is no memory.
  explicit Table(const TableOptions& options);
  ~Table();
  Table(Table&&) noexcept;
  Table& operator=(Table&&) noexcept;

  const TableOptions& options() const;
  // Replaces the rule, for example by one with another learning rate. Throws
  // Error(kInvalidArgument) for a rule of another kind or with other state.
  void set_rule(const RowRule& rule);

  // The logical time of later calls: a step, or any other count that does not go back. Starts at 0.
  // Throws Error(kInvalidArgument) for an earlier time.
  void set_clock(std::uint64_t now);
  std::uint64_t clock() const;

  // Writes the weights of each key's row to `out`, in the order of the keys: row_floats floats a
  // key. Keys may repeat. Makes rows that are missing, and touches all.
  //
  // Throws Error(kInvalidArgument) if `out` has another size, and Error(kUnavailable) if new rows
  // do not fit. The table then has the same rows as before; `out` may be written in part.
  void pull(std::span<const std::uint64_t> keys, std::span<float> out);
  // Writes what pull() would write, and changes nothing: no row is made, none is touched. So copies
  // of a table stay equal if only one of them is read. Throws as pull() for the size of `out`.
  void read(std::span<const std::uint64_t> keys, std::span<float> out) const;
  // Makes the rows that are missing, and touches all. Throws as pull(); nothing has changed then.
  void touch(std::span<const std::uint64_t> keys);

  // Updates each key's row by its gradient (or delta: Add). Makes rows that are missing. Gradients
  // of the same key in one push are summed first, in their order, and count as one push of the row.
  //
  // Throws Error(kInvalidArgument) if `gradients` has another size, and if a number is NaN or
  // infinite; the message names the key. Throws Error(kUnavailable) if new rows do not fit. After
  // an error no row has changed and none is new.
  void push(std::span<const std::uint64_t> keys, std::span<const float> gradients);

  // Removes the rows that were touched last more than `age` before the clock. Looks at no more than
  // `most` places of rows and goes on there in the next call, so that a server can evict a little
  // between requests. Returns the number of removed rows. The memory is used by later rows.
  std::uint64_t evict(std::uint64_t age, std::uint64_t most = ~std::uint64_t{0});

  // Removes rows as evict(), but only of keys whose hash is from `first` to `last`. Which rows go
  // depends on rows and clock only, not on the table's history: tables with equal rows stay equal.
  // Reads at least one segment of the index (256 KiB).
  std::uint64_t evict_range(std::uint64_t age, std::uint64_t first, std::uint64_t last);

  bool contains(std::uint64_t key) const;
  std::uint64_t rows() const;
  // Bytes that count for max_bytes. Free places of evicted rows count.
  std::uint64_t bytes() const;

  // A snapshot has the rows as they are now, however the table changes while it is read (a changed
  // row is copied first). Only the times of touches may be later, up to the clock of now.
  // begin_snapshot() ends one that was begun before.
  //
  // next_snapshot() appends about `bytes` bytes to `out`, at least one block (64 KiB, or a row),
  // and returns kDone with the last ones. Throws Error(kInvalidArgument) if no snapshot was begun,
  // and Error(kUnavailable) if changed rows did not fit in max_bytes: the snapshot is then over,
  // and the table goes on without it. Read often enough: each row that is changed before it was
  // read waits in memory.
  void begin_snapshot();
  SnapshotState next_snapshot(std::string& out, std::size_t bytes = std::size_t{1} << 20);
  void end_snapshot() noexcept;

 private:
  friend class TableReader;
  std::unique_ptr<internal::TableState> state_;
};

}  // namespace weft::ps
