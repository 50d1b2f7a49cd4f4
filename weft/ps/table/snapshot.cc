#include "weft/ps/table/snapshot.h"

#include <cstring>
#include <istream>
#include <limits>
#include <ostream>
#include <utility>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"
#include "weft/ps/table/internal/table_state.h"

namespace weft::ps {
namespace {

[[noreturn]] void fail_corrupt(std::uint64_t at, const std::string& what) {
  throw Error(Errc::kCorrupt, "table snapshot, byte " + std::to_string(at) + ": " + what);
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

}  // namespace

void save(Table& table, std::ostream& stream) {
  table.begin_snapshot();
  std::string piece;
  auto state = SnapshotState::kMore;
  while (state != SnapshotState::kDone && stream) {
    piece.clear();
    state = table.next_snapshot(piece);
    stream.write(piece.data(), static_cast<std::streamsize>(piece.size()));
  }
  stream.flush();
  if (stream) return;
  table.end_snapshot();
  throw Error(Errc::kUnavailable, "cannot write the snapshot of a table: the stream failed");
}

TableReader::TableReader(const TableOptions& options, Filter filter)
    : table_(options), filter_(std::move(filter)) {}

void TableReader::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (part_ == Part::kDone) fail_corrupt(bytes_, "bytes after the end");
    const std::size_t size = wanted();
    if (pending_.empty() && bytes.size() >= size) {
      take(bytes.substr(0, size));
      bytes.remove_prefix(size);
      continue;
    }
    const std::string_view more = bytes.substr(0, size - pending_.size());
    pending_ += more;
    bytes.remove_prefix(more.size());
    if (pending_.size() < size) return;
    const std::string part = std::exchange(pending_, {});
    take(part);
  }
}

Table TableReader::finish() {
  if (part_ != Part::kDone) fail_corrupt(bytes_ + pending_.size(), "the snapshot is truncated");
  return std::move(table_);
}

std::size_t TableReader::wanted() const {
  switch (part_) {
    case Part::kHeader: return internal::kSnapshotHeader;
    case Part::kRows: return block_rows_ * internal::row_bytes(table_.options());
    default: return internal::kBlockHeader;
  }
}

void TableReader::take(std::string_view part) {
  if (part_ == Part::kHeader)
    take_header(part);
  else if (part_ == Part::kBlock)
    take_block(part);
  else
    take_rows(part);
  bytes_ += part.size();
}

void TableReader::take_header(std::string_view part) {
  constexpr std::size_t kRows = 32, kClock = 40, kSum = internal::kSnapshotHeader - 4;
  if (part.substr(0, 8) != "WEFTTAB1") fail_corrupt(0, "this is no snapshot of a table");
  if (number_at<std::uint32_t>(part, kSum) != crc32c(part.data(), kSum))
    fail_corrupt(0, "the checksum of the header is wrong");
  const auto rows = number_at<std::uint64_t>(part, kRows);
  const auto clock = number_at<std::uint64_t>(part, kClock);
  WEFT_REQUIRE(internal::snapshot_header(table_.options(), rows, clock) == part,
               "the snapshot is of a table with another row length, rule, seed or initial range");
  expected_ = rows;
  table_.set_clock(clock);
  part_ = Part::kBlock;
}

void TableReader::take_block(std::string_view part) {
  block_rows_ = number_at<std::uint32_t>(part, 0);
  block_crc_ = number_at<std::uint32_t>(part, 4);
  if (block_rows_ == 0) {
    if (block_crc_ != 0) fail_corrupt(bytes_, "the end mark is damaged");
    if (read_ != expected_) {
      fail_corrupt(bytes_, "the header names " + std::to_string(expected_) +
                               " rows, and the blocks have " + std::to_string(read_));
    }
    part_ = Part::kDone;
    return;
  }
  const std::uint32_t most = internal::block_rows(table_.options());
  if (block_rows_ > most) {
    fail_corrupt(bytes_, "a block of " + std::to_string(block_rows_) + " rows, at most " +
                             std::to_string(most));
  }
  part_ = Part::kRows;
}

void TableReader::take_rows(std::string_view part) {
  if (crc32c(part.data(), part.size()) != block_crc_)
    fail_corrupt(bytes_, "the checksum of a block is wrong");
  const std::size_t size = internal::row_bytes(table_.options());
  for (std::size_t at = 0; at < part.size(); at += size) {
    const internal::SavedRow row{
        number_at<std::uint64_t>(part, at), number_at<std::uint64_t>(part, at + 8),
        number_at<std::uint32_t>(part, at + 16), part.data() + at + internal::kRowHead};
    if (row.touched > table_.clock())
      fail_corrupt(bytes_ + at, "a row was touched after the snapshot");
    if (filter_ && !filter_(row.key)) continue;
    if (!table_.state_->insert(row))
      fail_corrupt(bytes_ + at, "key " + std::to_string(row.key) + " is there twice");
  }
  read_ += block_rows_;
  part_ = Part::kBlock;
}

Table restore(const TableOptions& options, std::istream& stream, TableReader::Filter filter) {
  TableReader reader(options, std::move(filter));
  std::string piece(std::size_t{1} << 20, '\0');
  while (stream) {
    stream.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    reader.feed(std::string_view(piece).substr(0, static_cast<std::size_t>(stream.gcount())));
  }
  if (stream.bad())
    throw Error(Errc::kUnavailable, "cannot read the snapshot of a table: the stream failed");
  return reader.finish();
}

}  // namespace weft::ps
