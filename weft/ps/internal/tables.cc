#include "weft/ps/internal/tables.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "weft/compress/spec.h"
#include "weft/net/stream/bytes.h"
#include "weft/ps/internal/codecs.h"

namespace weft::ps::internal {
namespace {

using net::internal::ByteReader;
using net::internal::ByteWriter;

// The index of a table: of a row, where it takes most, and of an empty table.
constexpr std::uint64_t kRowIndex = 40, kEmptyIndex = 256 << 10;
constexpr std::uint64_t kRowHeader = 32, kRowUnit = 32;
// A push looks at this many rows for eviction, or at as many as it has keys.
constexpr std::size_t kLooks = 1024;

std::size_t width_of(const TableSpec& spec) { return static_cast<std::size_t>(spec.row_floats); }

TableOptions options_of(const TableSpec& spec, const TableFiles& files) {
  WEFT_REQUIRE(!spec.mapped || !files.folder.empty(),
               "table " + spec.name +
                   " has its rows in files, and this server has no folder for them; start all "
                   "servers with a folder");
  return {.row_floats = spec.row_floats,
          .rule = spec.rule,
          .initial_range = spec.initial_range,
          .seed = spec.seed,
          .folder = spec.mapped ? files.folder : ""};
}

std::string snapshot_of(Table& table) {
  std::string bytes;
  table.begin_snapshot();
  while (table.next_snapshot(bytes) == SnapshotState::kMore) {
  }
  return bytes;
}

// The table of a snapshot: its options, where its eviction goes on, and the bytes of its rows.
struct SavedTable {
  TableSpec spec;
  std::uint64_t evict_from = 0;
  std::string_view rows;
};
struct SavedTables {
  std::uint64_t now = 0;
  std::int64_t seen = 0;
  std::vector<SavedTable> tables;
};

SavedTables read_snapshot(std::string_view bytes) {
  ByteReader in(bytes);
  SavedTables saved;
  saved.now = in.take<std::uint64_t>();
  saved.seen = in.take<std::int64_t>();
  saved.tables.resize(in.take_count(sizeof(std::uint64_t)));
  for (SavedTable& table : saved.tables) {
    table.spec = decode_table(in.take_text());
    table.evict_from = in.take<std::uint64_t>();
    table.rows = in.take_view(in.take<std::uint64_t>(), 1);
  }
  in.expect_end();
  return saved;
}

std::unique_ptr<Table> table_of(std::string_view rows, const TableOptions& options) {
  TableReader reader(options);
  reader.feed(rows);
  return std::make_unique<Table>(reader.finish());
}

}  // namespace

std::uint64_t row_cost(const TableSpec& spec) {
  const std::uint64_t values =
      sizeof(float) * width_of(spec) * static_cast<std::uint64_t>(1 + state_arrays(spec.rule));
  return kRowIndex + (kRowHeader + values + kRowUnit - 1) / kRowUnit * kRowUnit;
}

Tables::Served Tables::serve(const TableSpec& spec, const TableFiles& files) {
  Served served;
  served.spec = spec;
  served.table = std::make_unique<Table>(options_of(spec, files));
  served.push_codec = codec_of(spec.push_codec);
  served.pull_codec = codec_of(spec.pull_codec);
  return served;
}

Tables::Tables(const std::vector<TableSpec>& specs, const TableFiles& files) {
  for (const TableSpec& spec : specs) tables_.push_back(serve(spec, files));
}

std::vector<TableSpec> Tables::specs() const {
  std::vector<TableSpec> specs;
  for (const Served& served : tables_) specs.push_back(served.spec);
  return specs;
}

Answer Tables::check_table(const Request& request) const {
  if (request.keys.size() == 1 && request.keys[0] < tables_.size()) return {};
  return invalid("a request for rows names a table that does not exist; the server has " +
                 std::to_string(tables_.size()) + " tables");
}

Answer Tables::check_pull(const Request& pull) const {
  if (Answer refusal = check_table(pull); is_refused(refusal)) return refusal;
  try {
    const RowKeys rows(pull.payload);
    if (!rows.values().empty()) return invalid("a pull of rows has bytes after its keys");
    if (rows.keys().size() > (std::size_t{1} << 24))
      return invalid("a pull of more than 2^24 rows in one request");
  } catch (const Error& error) {
    return invalid("a pull of rows: " + error.message());
  }
  return {};
}

std::uint64_t Tables::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const Served& served : tables_)
    if (!served.spec.mapped) bytes += kEmptyIndex + served.table->rows() * row_cost(served.spec);
  return bytes;
}

std::uint64_t Tables::file_bytes() const {
  std::uint64_t bytes = 0;
  for (const Served& served : tables_)
    if (served.spec.mapped) bytes += kEmptyIndex + served.table->rows() * row_cost(served.spec);
  return bytes;
}

std::uint64_t Tables::rows() const {
  std::uint64_t rows = 0;
  for (const Served& served : tables_) rows += served.table->rows();
  return rows;
}

std::uint64_t Tables::new_bytes(std::uint32_t table, std::span<const std::uint64_t> keys,
                                std::uint64_t room) const {
  const std::uint64_t cost = row_cost(spec(table));
  if (keys.size() <= room / cost) return keys.size() * cost;
  std::set<std::uint64_t> missing;
  for (const std::uint64_t key : keys)
    if (!tables_[table].table->contains(key)) missing.insert(key);
  return missing.size() * cost;
}

std::optional<std::span<const float>> Tables::decode(const Request& push, const RowKeys& rows) {
  const std::uint32_t table = push.keys[0];
  const Served& served = tables_[table];
  const std::size_t keys = rows.keys().size(), width = width_of(served.spec);
  std::string_view bytes = rows.values();
  if (keys > (std::size_t{1} << 31) || keys * width > (std::size_t{1} << 40)) return std::nullopt;
  const std::size_t count = keys * width;
  if (!served.push_codec) {
    if (bytes.size() != sizeof(float) * count) return std::nullopt;
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) == 0)
      return std::span(reinterpret_cast<const float*>(bytes.data()), count);
    scratch_.resize(count);
    if (count > 0) std::memcpy(scratch_.data(), bytes.data(), bytes.size());
    return scratch_;
  }
  // No codec sends less than a bit for a number. So the memory grows with the bytes that came.
  if (count / 8 > bytes.size()) return std::nullopt;
  scratch_.assign(count, 0);
  try {
    const std::uint64_t seed = compress::parse(served.spec.push_codec).seed;
    decode_values(*served.push_codec, bytes, draw_of(seed, push, table), scratch_);
  } catch (const Error& error) {
    if (error.code() != Errc::kCorrupt) throw;
    return std::nullopt;
  }
  if (!bytes.empty()) return std::nullopt;
  return scratch_;
}

void Tables::advance(std::int64_t step) {
  if (step <= seen_) return;
  now_ += static_cast<std::uint64_t>(step - seen_);
  seen_ = step;
}

void Tables::check_lr(std::uint32_t table, double lr) const {
  if (lr < 0) return;
  RowRule rule = spec(table).rule;
  set_lr(rule, lr);
  check(rule);
}

void Tables::push(std::uint32_t table, std::span<const std::uint64_t> keys,
                  std::span<const float> values, double lr) {
  Served& served = tables_[table];
  RowRule rule = served.spec.rule;
  if (lr >= 0) set_lr(rule, lr);
  served.table->set_rule(rule);
  served.table->set_clock(now_);
  served.table->push(keys, values);
  evict_some(served, std::max(keys.size(), kLooks));
}

void Tables::touch(std::uint32_t table, std::span<const std::uint64_t> keys) {
  tables_[table].table->set_clock(now_);
  tables_[table].table->touch(keys);
}

Answer Tables::evict(const Request& command) {
  if (Answer refusal = check_table(command); is_refused(refusal)) return refusal;
  try {
    ByteReader in(command.payload);
    const auto age = in.take<std::uint64_t>(), first = in.take<std::uint64_t>(),
               last = in.take<std::uint64_t>();
    in.expect_end();
    if (first > last) return invalid("an eviction goes from the first hash to the last one");
    Table& table = *tables_[command.keys[0]].table;
    table.set_clock(now_);
    table.evict_range(age, first, last);
  } catch (const Error& error) {
    return invalid(error.message());
  }
  return {};
}

// Looks at the next part of the table, of about so many rows.
void Tables::evict_some(Served& served, std::size_t looks) {
  if (served.spec.evict_after == 0) return;
  const std::uint64_t parts = std::max<std::uint64_t>(1, served.table->rows() / looks);
  const std::uint64_t span = ~std::uint64_t{0} / parts;
  const std::uint64_t first = parts == 1 ? 0 : served.evict_from;
  const std::uint64_t last = span > ~first ? ~std::uint64_t{0} : first + span;
  served.table->evict_range(served.spec.evict_after, first, last);
  served.evict_from = last + 1;  // after the last hash, 0
}

std::size_t Tables::pull_bytes(std::uint32_t table, std::size_t keys) const {
  const Served& served = tables_[table];
  const std::size_t count = keys * width_of(served.spec);
  return served.pull_codec
             ? static_cast<std::size_t>(served.pull_codec->bytes(static_cast<std::int64_t>(count)))
             : sizeof(float) * count;
}

void Tables::read(std::uint32_t table, std::span<const std::uint64_t> keys,
                  std::span<std::byte> out) const {
  const Served& served = tables_[table];
  const std::size_t count = keys.size() * width_of(served.spec);
  if (!served.pull_codec && reinterpret_cast<std::uintptr_t>(out.data()) % alignof(float) == 0)
    return served.table->read(keys, {reinterpret_cast<float*>(out.data()), count});
  std::vector<float> rows(count);
  served.table->read(keys, rows);
  if (!served.pull_codec) {
    if (count > 0) std::memcpy(out.data(), rows.data(), out.size());
    return;
  }
  std::vector<std::byte> wire;
  wire.reserve(out.size());
  served.pull_codec->encode(rows, {}, wire, nullptr);
  if (!wire.empty()) std::memcpy(out.data(), wire.data(), wire.size());
}

std::string Tables::begin_pieces() {
  ByteWriter out;
  out.put(now_);
  out.put(seen_);
  out.put(static_cast<std::uint32_t>(tables_.size()));
  for (Served& served : tables_) {
    out.put_text(encode_table(served.spec));
    out.put(served.evict_from);
    out.put<std::uint64_t>(0);
    served.table->begin_snapshot();
  }
  piece_table_ = 0;
  makes_pieces_ = true;
  return out.take();
}

std::optional<std::string> Tables::next_piece() {
  if (piece_table_ == tables_.size()) return std::nullopt;
  if (!makes_pieces_)
    throw Error(Errc::kAborted, "the rows of the state were read for another purpose");
  ByteWriter head;
  head.put(static_cast<std::uint32_t>(piece_table_));
  std::string piece = head.take();
  if (tables_[piece_table_].table->next_snapshot(piece) == SnapshotState::kDone) ++piece_table_;
  return piece;
}

Tables Tables::receiving(std::string_view head, const TableFiles& files) {
  Tables tables = restored(head, files, false);
  for (Served& served : tables.tables_)
    served.reader = std::make_unique<TableReader>(options_of(served.spec, files));
  return tables;
}

void Tables::take_piece(std::string_view piece) {
  ByteReader in(piece);
  const auto table = in.take<std::uint32_t>();
  if (table >= tables_.size() || !tables_[table].reader) ByteReader::fail();
  tables_[table].reader->feed(piece.substr(piece.size() - in.left()));
}

void Tables::finish_pieces() {
  for (Served& served : tables_) {
    served.table = std::make_unique<Table>(served.reader->finish());
    served.reader.reset();
    if (served.table->clock() > now_) ByteReader::fail();
  }
}

std::string Tables::snapshot() const {
  makes_pieces_ = false;
  ByteWriter out;
  out.put(now_);
  out.put(seen_);
  out.put(static_cast<std::uint32_t>(tables_.size()));
  for (const Served& served : tables_) {
    out.put_text(encode_table(served.spec));
    out.put(served.evict_from);
    const std::string rows = snapshot_of(*served.table);
    out.put<std::uint64_t>(rows.size());
    out.put_bytes(rows);
  }
  return out.take();
}

Tables Tables::restored(std::string_view bytes, const TableFiles& files, bool has_rows) {
  const SavedTables saved = read_snapshot(bytes);
  Tables tables;
  tables.now_ = saved.now;
  tables.seen_ = saved.seen;
  std::set<std::string> names;
  try {
    for (const SavedTable& one : saved.tables) {
      check(one.spec);
      if (!names.insert(one.spec.name).second) ByteReader::fail();
    }
  } catch (const Error& error) {
    throw Error(Errc::kCorrupt, error.message());
  }
  for (const SavedTable& one : saved.tables) {
    const TableOptions options = options_of(one.spec, files);
    Served served = serve(one.spec, files);
    try {
      if (has_rows) served.table = table_of(one.rows, options);
    } catch (const Error& error) {
      if (error.code() != Errc::kInvalidArgument) throw;
      throw Error(Errc::kCorrupt, error.message());
    }
    if (served.table->clock() > tables.now_) ByteReader::fail();
    served.evict_from = one.evict_from;
    tables.tables_.push_back(std::move(served));
  }
  return tables;
}

Tables Tables::loaded(std::string_view head, const std::vector<std::string_view>& pieces,
                      const TableFiles& files) const {
  const SavedTables saved = read_snapshot(head);
  Tables tables(specs(), files);
  tables.now_ = std::max(now_, saved.now);
  tables.seen_ = seen_;
  std::vector<Served*> targets;
  for (const SavedTable& one : saved.tables) {
    const auto known =
        std::find_if(tables.tables_.begin(), tables.tables_.end(),
                     [&](const Served& served) { return served.spec.name == one.spec.name; });
    WEFT_REQUIRE(known != tables.tables_.end(),
                 "it has a table " + one.spec.name + ", which define() did not name");
    known->reader = std::make_unique<TableReader>(options_of(known->spec, files));
    targets.push_back(&*known);
  }
  for (const std::string_view piece : pieces) {
    ByteReader in(piece);
    const auto number = in.take<std::uint32_t>();
    if (number >= targets.size()) ByteReader::fail();
    try {
      targets[number]->reader->feed(piece.substr(piece.size() - in.left()));
    } catch (const Error& error) {
      throw Error(error.code(), "table " + targets[number]->spec.name + ": " + error.message());
    }
  }
  for (Served* const target : targets) {
    if (!target->reader) ByteReader::fail();  // the name was there twice
    target->table = std::make_unique<Table>(target->reader->finish());
    target->reader.reset();
    if (target->table->clock() > tables.now_) ByteReader::fail();
  }
  return tables;
}

}  // namespace weft::ps::internal
