#include "weft/ps/table/internal/table_snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/base/crc32c.h"
#include "weft/base/error.h"

namespace weft::ps::internal {
namespace {

template <class Number>
void append_number(std::string& out, Number number) {
  char bytes[sizeof(Number)];
  std::memcpy(bytes, &number, sizeof(Number));
  out.append(bytes, sizeof(Number));
}

}  // namespace

std::string snapshot_header(const TableOptions& options, std::uint64_t rows, std::uint64_t clock) {
  std::string out = "WEFTTAB1";
  append_number(out, static_cast<std::uint32_t>(options.row_floats));
  append_number(out, static_cast<std::uint32_t>(state_arrays(options.rule)));
  append_number(out, static_cast<std::uint32_t>(options.rule.index()));
  append_number(out, options.initial_range);
  append_number(out, options.seed);
  append_number(out, rows);
  append_number(out, clock);
  append_number(out, std::uint32_t{0});
  append_number(out, crc32c(out.data(), out.size()));
  return out;
}

std::size_t row_bytes(const TableOptions& options) {
  return kRowHead + static_cast<std::size_t>(options.row_floats) * sizeof(float) *
                        static_cast<std::size_t>(1 + state_arrays(options.rule));
}

std::uint32_t block_rows(const TableOptions& options) {
  constexpr std::size_t kBlock = 64 << 10;
  return static_cast<std::uint32_t>(std::max<std::size_t>(1, kBlock / row_bytes(options)));
}

void TableSnapshot::begin(std::uint64_t rows, std::uint64_t clock) {
  end();
  is_begun_ = true;
  ++epoch_;
  cursor_ = 0;
  end_ = rows_.high();
  row_count_ = rows;
  clock_ = clock;
}

void TableSnapshot::end() noexcept {
  budget_.give_back(saved_.size());
  std::string().swap(saved_);
  saved_read_ = 0;
  is_begun_ = has_failed_ = header_sent_ = false;
}

void TableSnapshot::append_row(std::string& out, RowHeader& row) const {
  append_number(out, row.key);
  append_number(out, std::min(row.touched, clock_));
  append_number(out, row.updates);
  out.append(reinterpret_cast<const char*>(row.values()), row_bytes(options_) - kRowHead);
}

// Serving comes first: if the copy does not fit, the snapshot fails and not the push.
void TableSnapshot::save(RowHeader& row) noexcept {
  if (has_failed_) return;
  const std::size_t bytes = row_bytes(options_);
  try {
    budget_.take(bytes);
  } catch (...) {  // no memory for a copy: see above
    has_failed_ = true;
    return;
  }
  try {
    append_row(saved_, row);
    row.epoch = epoch_;
  } catch (...) {  // the same
    budget_.give_back(bytes);
    has_failed_ = true;
  }
}

SnapshotState TableSnapshot::next(std::string& out, std::size_t bytes) {
  WEFT_REQUIRE(is_begun_, "no snapshot was begun: call begin_snapshot() first");
  if (has_failed_) {
    end();
    throw Error(Errc::kUnavailable,
                "the snapshot is over: rows that changed before they were read did not fit in the "
                "memory of the table; begin again and read more often");
  }
  const std::size_t most = out.size() + std::max<std::size_t>(bytes, 1);
  if (!std::exchange(header_sent_, true)) out += snapshot_header(options_, row_count_, clock_);
  while (out.size() < most) {
    if (append_block(out)) continue;
    append_number(out, std::uint64_t{0});
    end();
    return SnapshotState::kDone;
  }
  return SnapshotState::kMore;
}

// False if there are no more rows.
bool TableSnapshot::append_block(std::string& out) {
  const std::size_t bytes = row_bytes(options_), head = out.size();
  const std::uint32_t most = block_rows(options_);
  std::uint32_t count = 0;
  append_number(out, std::uint64_t{0});
  for (; count < most && saved_read_ < saved_.size(); ++count, saved_read_ += bytes)
    out.append(saved_, saved_read_, bytes);
  if (saved_read_ == saved_.size()) {
    budget_.give_back(saved_.size());
    saved_.clear();
    saved_read_ = 0;
  }
  for (; count < most && cursor_ < end_; ++cursor_) {
    RowHeader& row = rows_.at(cursor_);
    if (row.next != RowHeader::kLive || row.epoch == epoch_) continue;
    append_row(out, row);
    row.epoch = epoch_;
    ++count;
  }
  if (count == 0) {
    out.resize(head);
    return false;
  }
  const std::uint32_t sum = crc32c(out.data() + head + kBlockHeader, count * bytes);
  std::memcpy(out.data() + head, &count, sizeof count);
  std::memcpy(out.data() + head + sizeof count, &sum, sizeof sum);
  return true;
}

}  // namespace weft::ps::internal
