// The embedding tables of a shard: rows of weft/ps/table, their limits, codecs and eviction.
//
// Deterministic: servers that apply the same pushes in the same order have the same rows, and
// refuse the same pushes. So nothing here depends on how a table grew: memory counts by rows,
// and eviction goes through the table by the hashes of the keys. A pull changes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/compress/codec.h"
#include "weft/ps/internal/request.h"
#include "weft/ps/internal/rows.h"
#include "weft/ps/table/snapshot.h"
#include "weft/ps/table/table.h"

namespace weft::ps::internal {

// Where mapped tables lie.
struct TableFiles {
  std::string folder;  // empty: this server takes no mapped tables
  std::uint64_t max_bytes = ~std::uint64_t{0};
};

// Pushed rows, decoded.
struct RowPush {
  std::uint32_t table = 0;
  double lr = -1;  // below 0: that of the rule
  std::vector<std::uint64_t> keys;
  std::vector<float> values;
};

class Tables {
 public:
  Tables() = default;
  // Empty tables. Throws Error(kUnavailable) if there is no memory or no space in the folder, and
  // Error(kInvalidArgument) if a table needs a folder that is not there.
  Tables(const std::vector<TableSpec>& specs, const TableFiles& files);

  std::size_t size() const { return tables_.size(); }
  const TableSpec& spec(std::uint32_t table) const { return tables_[table].spec; }
  std::vector<TableSpec> specs() const;
  // The refusal of a request for rows, or a pull, that is malformed or names no table; kDone if it
  // may be served.
  Answer check_table(const Request& request) const;
  Answer check_pull(const Request& pull) const;
  // Bytes that count for the limits of memory and of files.
  std::uint64_t memory_bytes() const;
  std::uint64_t file_bytes() const;
  std::uint64_t rows() const;
  // Bytes of the rows that a push of these keys makes, in memory or in files. If `room` is enough
  // for rows of all keys, rows that are there already may count.
  std::uint64_t new_bytes(std::uint32_t table, std::span<const std::uint64_t> keys,
                          std::uint64_t room) const;

  // Values of a push: aligned floats, which stay until the next call. None: they have another size
  // than keys and row length say, or are no codes.
  std::optional<std::span<const float>> decode(const Request& push, const RowKeys& rows);

  // The highest step that a worker has reached. Rows age by it.
  void advance(std::int64_t step);
  // Throw Error(kUnavailable) if there is no memory or no space. No row has changed then.
  void push(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<const float> values,
            double lr);
  void touch(std::uint32_t table, std::span<const std::uint64_t> keys);
  // Throws Error(kInvalidArgument) if the rule does not take this learning rate.
  void check_lr(std::uint32_t table, double lr) const;
  Answer evict(const Request& command);

  // Bytes of pulled rows, and the rows, through the codec of pulls.
  std::size_t pull_bytes(std::uint32_t table, std::size_t keys) const;
  void read(std::uint32_t table, std::span<const std::uint64_t> keys,
            std::span<std::byte> out) const;

  // Options, rows and times as bytes.
  std::string snapshot() const;
  // Throws Error(kCorrupt), and as the constructor.
  static Tables restored(std::string_view bytes, const TableFiles& files, bool has_rows = true);
  // The same in pieces, while pushes go on. begin_pieces() fixes the moment, and returns options
  // and times. next_piece() returns the next rows, about 1 MiB; none: there are no more. Throws
  // Error(kAborted) if snapshot() was called since, and Error(kUnavailable) if there was no memory
  // for rows that changed. Only the times of touches may be later: pushes that come after the
  // pieces set them again.
  std::string begin_pieces();
  std::optional<std::string> next_piece();
  // Tables that get their rows by take_piece(), and may be used after finish_pieces(). Throw
  // Error(kCorrupt), and as the constructor.
  static Tables receiving(std::string_view head, const TableFiles& files);
  void take_piece(std::string_view piece);
  void finish_pieces();
  // These tables with the rows that another server gave in pieces. Tables that it does not have are
  // empty. Throws Error(kInvalidArgument) if a table has other options or is not one of these, and
  // as restored().
  Tables loaded(std::string_view head, const std::vector<std::string_view>& pieces,
                const TableFiles& files) const;
  // For tests.
  Table& table(std::uint32_t number) const { return *tables_[number].table; }

 private:
  struct Served {
    TableSpec spec;
    std::unique_ptr<Table> table;
    std::uint64_t evict_from = 0;  // hash at which the next part begins
    std::unique_ptr<compress::Codec> push_codec, pull_codec;
    std::unique_ptr<TableReader> reader;  // of a table that gets its rows
  };

  static Served serve(const TableSpec& spec, const TableFiles& files);
  void evict_some(Served& served, std::size_t looks);

  std::vector<Served> tables_;
  std::uint64_t now_ = 0;  // time of the rows
  std::int64_t seen_ = 0;  // highest step of a worker
  // Of the pieces that are made: table, and that nobody else has taken its snapshot.
  std::size_t piece_table_ = 0;
  mutable bool makes_pieces_ = false;
  std::vector<float> scratch_;  // of decode()
};

// Bytes that a row counts for the limits, with its place in the index.
std::uint64_t row_cost(const TableSpec& spec);

}  // namespace weft::ps::internal
