// Rows of embedding tables: pushes, the rows of a step, eviction, pulls.
#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/base/log.h"
#include "weft/kernels/reduce.h"
#include "weft/net/stream/bytes.h"
#include "weft/ps/internal/rows.h"
#include "weft/ps/internal/shard.h"

namespace weft::ps::internal {
namespace {

// Most of a pushed number with staleness 0: no sum of a step is infinite.
constexpr float kMaxInStep = 1e28f;

bool is_refused(const Answer& answer) { return answer.outcome != Outcome::kDone; }

std::uint64_t bytes_of(const RowPush& push) {
  return sizeof(std::uint64_t) * push.keys.size() + sizeof(float) * push.values.size();
}

}  // namespace

Answer Shard::check_table(const Request& request) const {
  if (request.keys.size() == 1 && request.keys[0] < tables_.size()) return {};
  return invalid("a request for rows names a table that does not exist; the server has " +
                 std::to_string(tables_.size()) + " tables");
}

Answer Shard::check_row_values(const Request& push, std::span<const std::uint64_t> keys,
                               std::span<const float> values) const {
  const bool waits = options_.staleness == kSync;
  const float most = waits ? kMaxInStep : std::numeric_limits<float>::max();
  if (kernels::is_within(values.data(), static_cast<std::int64_t>(values.size()), most)) return {};
  const auto bad = std::find_if(values.begin(), values.end(),
                                [&](float value) { return !(std::fabs(value) <= most); });
  const auto at = static_cast<std::size_t>(bad - values.begin());
  const TableSpec& table = tables_.spec(push.keys[0]);
  const auto width = static_cast<std::size_t>(table.row_floats);
  const std::string what = std::isnan(*bad)       ? "NaN"
                           : !std::isfinite(*bad) ? "infinity"
                                                  : "more than 1e28";
  return invalid("worker " + std::to_string(push.worker) + " pushed " + what + " for key " +
                 std::to_string(keys[at / width]) + " of table " + table.name + ", element " +
                 std::to_string(at % width) + ", at its step " +
                 std::to_string(workers_.at(push.worker).clock) +
                 "; the push is refused, and nothing was changed");
}

Answer Shard::full_of_files(const std::string& what, std::uint64_t bytes) const {
  const auto mb = [](std::uint64_t count) { return std::to_string((count + 999'999) / 1'000'000); };
  return refuse(Errc::kUnavailable, "the parameter server is full: " + what + " would take " +
                                        mb(bytes) + " MB beside " + mb(tables_.file_bytes()) +
                                        " MB in files, and folder_mb is " +
                                        std::to_string(files_.max_bytes / 1'000'000) +
                                        "; nothing was changed. Raise folder_mb, use more servers "
                                        "or evict rows");
}

Answer Shard::check_row_room(const Request& push, std::span<const std::uint64_t> keys) const {
  const std::uint32_t table = push.keys[0];
  const TableSpec& spec = tables_.spec(table);
  // With staleness 0, the push itself waits in memory.
  const std::uint64_t waits =
      options_.staleness != kSync
          ? 0
          : keys.size() * (sizeof(std::uint64_t) +
                           sizeof(float) * static_cast<std::uint64_t>(spec.row_floats));
  const auto left = [](std::uint64_t most, std::uint64_t used) {
    return most - std::min(most, used);
  };
  const std::string what =
      "the rows that worker " + std::to_string(push.worker) + " pushed to " + spec.name;
  if (spec.mapped) {
    const std::uint64_t room = left(files_.max_bytes, tables_.file_bytes());
    const std::uint64_t bytes = tables_.new_bytes(table, keys, room);
    if (bytes > room) return full_of_files(what, bytes);
    return has_room(waits) ? Answer{} : full(what, waits);
  }
  const std::uint64_t room = left(memory_bytes_, memory_in_use() + waits);
  const std::uint64_t bytes = tables_.new_bytes(table, keys, room);
  return has_room(waits + bytes) ? Answer{} : full(what, waits + bytes);
}

Answer Shard::push_rows(const Request& command) {
  if (Answer refusal = check_worker(command); is_refused(refusal)) return refusal;
  if (Answer refusal = check_table(command); is_refused(refusal)) return refusal;
  const std::uint32_t table = command.keys[0];
  const std::string name = "worker " + std::to_string(command.worker) + " pushed ";
  std::optional<RowKeys> rows;
  try {
    rows.emplace(command.payload);
    tables_.check_lr(table, command.lr);
  } catch (const Error& error) {
    return invalid(name + "rows of table " + tables_.spec(table).name + ": " + error.message());
  }
  const auto keys = rows->keys();
  const TableSpec& spec = tables_.spec(table);
  const auto values =
      tables_.decode(table, rows->values(), keys.size(),
                     draw_of(compress::parse(spec.push_codec).seed, command, table), scratch_);
  if (!values)
    return invalid(name + std::to_string(rows->values().size()) + " bytes for " +
                   std::to_string(keys.size()) + " rows of " + std::to_string(spec.row_floats) +
                   " floats of table " + spec.name +
                   "; the shape and push_codec must be those of define()");
  if (Answer refusal = check_row_values(command, keys, *values); is_refused(refusal))
    return refusal;
  if (Answer refusal = check_row_room(command, keys); is_refused(refusal)) return refusal;
  if (options_.staleness != kSync) {
    try {
      tables_.push(table, keys, *values, command.lr);
    } catch (const Error& error) {
      if (error.code() != Errc::kInvalidArgument) throw;
      return invalid(name + "rows of table " + tables_.spec(table).name + ": " + error.message());
    }
    return {};
  }
  if (Answer refusal = check_rows_lr(command); is_refused(refusal)) return refusal;
  // The step must not fail later for want of memory.
  tables_.touch(table, keys);
  RowPush push{table, command.lr, {keys.begin(), keys.end()}, {values->begin(), values->end()}};
  used_bytes_ += bytes_of(push);
  row_rounds_[workers_.at(command.worker).clock][command.worker].push_back(std::move(push));
  return {};
}

// The rows that a step pushes to a table make one update of each row, with one learning rate.
Answer Shard::check_rows_lr(const Request& push) const {
  const auto round = row_rounds_.find(workers_.at(push.worker).clock);
  if (round == row_rounds_.end()) return {};
  const auto said = [](double lr) { return lr < 0 ? "that of the rule" : json_number(lr); };
  for (const auto& [other, pushes] : round->second) {
    for (const RowPush& before : pushes) {
      if (before.table != push.keys[0] || said(before.lr) == said(push.lr)) continue;
      return invalid("worker " + std::to_string(push.worker) + " pushed rows of table " +
                     tables_.spec(before.table).name + " with the learning rate " + said(push.lr) +
                     " and worker " + std::to_string(other) + " with " + said(before.lr) +
                     " in the same step; all pushes of a step use one. Nothing was changed");
    }
  }
  return {};
}

// The rows of a step, in the order of tables, workers and pushes: one update of each row by the
// mean over the workers that made the step, where a worker that did not push a row counts as zero.
// Of deltas: by their sum.
void Shard::apply_rows(std::int64_t clock, std::size_t workers) {
  const auto round = row_rounds_.find(clock);
  if (round == row_rounds_.end()) return;
  for (std::uint32_t table = 0; table < tables_.size(); ++table) {
    RowPush all{table, -1, {}, {}};
    for (const auto& [worker, pushes] : round->second) {
      for (const RowPush& push : pushes) {
        if (push.table != table) continue;
        if (all.keys.empty()) all.lr = push.lr;
        all.keys.insert(all.keys.end(), push.keys.begin(), push.keys.end());
        all.values.insert(all.values.end(), push.values.begin(), push.values.end());
      }
    }
    if (all.keys.empty()) continue;
    const bool adds = std::holds_alternative<Add>(tables_.spec(table).rule);
    const float share = adds ? 1.0f : 1.0f / static_cast<float>(workers);
    if (share != 1.0f)
      for (float& value : all.values) value *= share;
    tables_.push(table, all.keys, all.values, all.lr);
  }
  for (const auto& [worker, pushes] : round->second)
    for (const RowPush& push : pushes) used_bytes_ -= bytes_of(push);
  row_rounds_.erase(round);
}

// A step that its worker has not ended does not happen.
void Shard::drop_unfinished_rows(std::uint32_t worker) {
  for (auto round = row_rounds_.begin(); round != row_rounds_.end();) {
    const auto step = rounds_.find(round->first);
    const bool is_ended = step != rounds_.end() && step->second.contains(worker);
    const auto rows = round->second.find(worker);
    if (!is_ended && rows != round->second.end()) {
      for (const RowPush& push : rows->second) used_bytes_ -= bytes_of(push);
      round->second.erase(rows);
    }
    round = round->second.empty() ? row_rounds_.erase(round) : std::next(round);
  }
}

Answer Shard::evict(const Request& command) {
  if (Answer refusal = check_worker(command); is_refused(refusal)) return refusal;
  if (Answer refusal = check_table(command); is_refused(refusal)) return refusal;
  try {
    net::internal::ByteReader in(command.payload);
    const auto age = in.take<std::uint64_t>(), first = in.take<std::uint64_t>(),
               last = in.take<std::uint64_t>();
    in.expect_end();
    if (first > last) return invalid("an eviction goes from the first hash to the last one");
    tables_.evict(command.keys[0], age, first, last);
  } catch (const Error& error) {
    return invalid(error.message());
  }
  return {};
}

Answer Shard::check_rows_pull(const Request& pull) const {
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

}  // namespace weft::ps::internal
