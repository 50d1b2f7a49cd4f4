#include "weft/ps/table/table.h"

#include "weft/base/error.h"
#include "weft/ps/table/internal/table_state.h"

namespace weft::ps {
namespace {

void check_sizes(const char* call, std::size_t keys, std::size_t values, std::int64_t row_floats) {
  WEFT_REQUIRE(keys < (std::size_t{1} << 31),
               std::string(call) + ": " + std::to_string(keys) +
                   " keys in one call, at most 2^31 - 1; use several calls");
  const std::size_t expected = keys * static_cast<std::size_t>(row_floats);
  WEFT_REQUIRE(values == expected, std::string(call) + ": " + std::to_string(values) +
                                       " floats for " + std::to_string(keys) + " keys; rows of " +
                                       std::to_string(row_floats) + " floats need " +
                                       std::to_string(expected));
}

}  // namespace

Table::Table(const TableOptions& options)
    : state_(std::make_unique<internal::TableState>(options)) {}
Table::~Table() = default;
Table::Table(Table&&) noexcept = default;
Table& Table::operator=(Table&&) noexcept = default;

const TableOptions& Table::options() const { return state_->options; }

void Table::set_rule(const RowRule& rule) {
  const TableOptions& options = state_->options;
  WEFT_REQUIRE(
      rule.index() == options.rule.index() && state_arrays(rule) == state_arrays(options.rule),
      "the table has the rule " + rule_name(options.rule) + " with " +
          std::to_string(state_arrays(options.rule)) + " arrays of state, not " + rule_name(rule) +
          " with " + std::to_string(state_arrays(rule)));
  check(rule);
  state_->options.rule = rule;
}

void Table::set_clock(std::uint64_t now) {
  WEFT_REQUIRE(now >= state_->clock, "the clock of a table cannot go back from " +
                                         std::to_string(state_->clock) + " to " +
                                         std::to_string(now));
  state_->clock = now;
}

std::uint64_t Table::clock() const { return state_->clock; }

void Table::pull(std::span<const std::uint64_t> keys, std::span<float> out) {
  check_sizes("pull", keys.size(), out.size(), state_->options.row_floats);
  state_->pull(keys, out);
}

void Table::read(std::span<const std::uint64_t> keys, std::span<float> out) const {
  check_sizes("read", keys.size(), out.size(), state_->options.row_floats);
  state_->read(keys, out);
}

void Table::touch(std::span<const std::uint64_t> keys) { state_->touch(keys); }

void Table::push(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
  check_sizes("push", keys.size(), gradients.size(), state_->options.row_floats);
  state_->push(keys, gradients);
}

std::uint64_t Table::evict(std::uint64_t age, std::uint64_t most) {
  return state_->evict(age, most);
}

std::uint64_t Table::evict_range(std::uint64_t age, std::uint64_t first, std::uint64_t last) {
  return state_->evict_range(age, first, last);
}

bool Table::contains(std::uint64_t key) const {
  return state_->index.find(internal::hash_key(key), key) != internal::KeyIndex::kNone;
}

std::uint64_t Table::rows() const { return state_->index.size(); }
std::uint64_t Table::bytes() const { return state_->budget.used(); }

void Table::begin_snapshot() { state_->begin_snapshot(); }

SnapshotState Table::next_snapshot(std::string& out, std::size_t bytes) {
  return state_->next_snapshot(out, bytes);
}

void Table::end_snapshot() noexcept { state_->end_snapshot(); }

}  // namespace weft::ps
