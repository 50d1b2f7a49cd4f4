// Rows of embedding tables: pushes, eviction, pulls.
#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/kernels/reduce.h"
#include "weft/ps/internal/shard.h"

namespace weft::ps::internal {
namespace {

// Most of a pushed number with staleness 0: no sum of a step is infinite.
constexpr float kMaxInStep = 1e28f;

// The first number beyond `most`, with its place; "" if there is none.
std::string fault_in(const TableSpec& table, std::span<const std::uint64_t> keys,
                     std::span<const float> values, float most) {
  if (kernels::is_within(values.data(), static_cast<std::int64_t>(values.size()), most)) return "";
  const auto bad = std::find_if(values.begin(), values.end(),
                                [&](float value) { return !(std::fabs(value) <= most); });
  const auto at = static_cast<std::size_t>(bad - values.begin());
  const auto width = static_cast<std::size_t>(table.row_floats);
  const std::string what = std::isnan(*bad)       ? "NaN"
                           : !std::isfinite(*bad) ? "infinity"
                                                  : "more than 1e28";
  return what + " for key " + std::to_string(keys[at / width]) + " of table " + table.name +
         ", element " + std::to_string(at % width);
}

}  // namespace

Answer Shard::check_row_room(const Request& push, std::span<const std::uint64_t> keys) const {
  const std::uint32_t table = push.keys[0];
  const TableSpec& spec = tables_.spec(table);
  // With staleness 0, the push itself waits in memory.
  const std::uint64_t waits =
      tensors_.options().staleness != kSync
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
  if (Answer refusal = workers_.check(command); is_refused(refusal)) return refusal;
  if (Answer refusal = tables_.check_table(command); is_refused(refusal)) return refusal;
  const std::uint32_t table = command.keys[0];
  const std::string name = "worker " + std::to_string(command.worker) + " pushed ";
  const TableSpec& spec = tables_.spec(table);
  std::optional<RowKeys> rows;
  try {
    rows.emplace(command.payload);
    tables_.check_lr(table, command.lr);
  } catch (const Error& error) {
    return invalid(name + "rows of table " + spec.name + ": " + error.message());
  }
  const auto keys = rows->keys();
  const auto values = tables_.decode(command, *rows);
  if (!values)
    return invalid(name + std::to_string(rows->values().size()) + " bytes for " +
                   std::to_string(keys.size()) + " rows of " + std::to_string(spec.row_floats) +
                   " floats of table " + spec.name +
                   "; the shape and push_codec must be those of define()");
  const bool waits = tensors_.options().staleness == kSync;
  const std::int64_t step = workers_.clock(command.worker);
  const float most = waits ? kMaxInStep : std::numeric_limits<float>::max();
  if (const std::string fault = fault_in(spec, keys, *values, most); !fault.empty())
    return invalid(name + fault + ", at its step " + std::to_string(step) +
                   "; the push is refused, and nothing was changed");
  if (Answer refusal = check_row_room(command, keys); is_refused(refusal)) return refusal;
  if (!waits) {
    try {
      tables_.push(table, keys, *values, command.lr);
    } catch (const Error& error) {
      if (error.code() != Errc::kInvalidArgument) throw;
      return invalid(name + "rows of table " + spec.name + ": " + error.message());
    }
    return {};
  }
  if (Answer refusal = rounds_.check_rows_lr(command, step, spec.name); is_refused(refusal))
    return refusal;
  // The step must not fail later for want of memory.
  tables_.touch(table, keys);
  rounds_.add_rows(
      step, command.worker,
      {table, command.lr, {keys.begin(), keys.end()}, {values->begin(), values->end()}});
  return {};
}

}  // namespace weft::ps::internal
