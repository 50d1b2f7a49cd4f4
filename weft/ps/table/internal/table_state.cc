// Speed. A lookup reads two places that are in no cache: a line of the index, and the row. visit()
// has both fetched ahead:
//
//   key i               its hash; fetch the line of the index
//   key i - kAhead      its slot; fetch the row
//   key i - 2 kAhead    use the row
//
// A slot stays right until it is used, since rows never move and no call removes rows while it
// visits. Only "none" may be out of date: the same key may have come before and made the row.
// find_or_create() asks again.
//
// All or nothing. created_ has the keys of the rows that the call has made. If it fails,
// remove_created() takes them out. push() first sums and checks the gradients, then finds or makes
// all rows, then updates them.
//
// Snapshots. snapshot_.before_change() comes before each change of a row's values and before its
// removal. `touched` alone may change without it: a snapshot writes at most its own time. A new row
// gets the epoch of the snapshot, and so is not part of it.
#include "weft/ps/table/internal/table_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::ps {

void check(const TableOptions& options) {
  WEFT_REQUIRE(options.row_floats >= 1 && options.row_floats <= TableOptions::kMaxFloats,
               "row_floats = " + std::to_string(options.row_floats) + ": a row has 1 to " +
                   std::to_string(TableOptions::kMaxFloats) + " floats");
  WEFT_REQUIRE(std::isfinite(options.initial_range) && options.initial_range >= 0,
               "initial_range = " + json_number(options.initial_range) +
                   ": the range of first weights is at least 0");
  check(options.rule);
}

namespace internal {
namespace {

std::size_t floats_of(const TableOptions& options) {
  return static_cast<std::size_t>(options.row_floats) *
         static_cast<std::size_t>(1 + state_arrays(options.rule));
}

const TableOptions& checked(const TableOptions& options) {
  check(options);
  return options;
}

}  // namespace

TableState::TableState(const TableOptions& given)
    : options(checked(given)),
      budget(options.max_bytes),
      index(options.folder, budget),
      row_floats_(static_cast<std::size_t>(options.row_floats)),
      rows_(options.folder, floats_of(options), budget),
      snapshot_(options, rows_, budget),
      sums_(row_floats_) {}

// The rings hold what is known of the 2 kAhead + 1 keys under way.
template <class Use>
void TableState::visit(std::span<const std::uint64_t> keys, bool fetch_rows, const Use& use) const {
  constexpr std::size_t kRing = 32;
  static_assert(kRing > 2 * kAhead);
  std::array<std::uint64_t, kRing> hashes{};
  std::array<std::uint32_t, kRing> slots{};
  for (std::size_t i = 0; i < keys.size() + 2 * kAhead; ++i) {
    if (i < keys.size()) {
      hashes[i % kRing] = hash_key(keys[i]);
      index.prefetch(hashes[i % kRing]);
    }
    if (const std::size_t k = i - kAhead; i >= kAhead && k < keys.size()) {
      const std::uint32_t slot = index.find(hashes[k % kRing], keys[k]);
      slots[k % kRing] = slot;
      if (fetch_rows && slot != KeyIndex::kNone) rows_.prefetch(slot);
    }
    if (const std::size_t k = i - 2 * kAhead; i >= 2 * kAhead)
      use(k, hashes[k % kRing], slots[k % kRing]);
  }
}

RowValues TableState::values_of(RowHeader& row) const {
  return {row.values(), row.values() + row_floats_, options.row_floats};
}

void TableState::initial_weights(std::uint64_t key, float* to) const {
  if (options.initial_range == 0) {
    std::fill_n(to, row_floats_, 0.0f);
    return;
  }
  constexpr std::uint32_t kStream = 0x70746162;  // "ptab"
  Random random(options.seed, kStream, key);
  for (std::size_t i = 0; i < row_floats_; ++i)
    to[i] = options.initial_range * (2 * random.uniform_float() - 1);
}

std::uint32_t TableState::find_or_create(std::uint64_t hash, std::uint64_t key) {
  if (const std::uint32_t slot = index.find(hash, key); slot != KeyIndex::kNone) return slot;
  // Before the row is made: if this fails, there is nothing to take out.
  created_.push_back(key);
  try {
    const std::uint32_t slot = add_row(hash, key);
    const RowValues values = values_of(rows_.at(slot));
    initial_weights(key, values.weights);
    init_state(options.rule, values);
    return slot;
  } catch (...) {
    created_.pop_back();
    throw;
  }
}

std::uint32_t TableState::add_row(std::uint64_t hash, std::uint64_t key) {
  const std::uint32_t slot = rows_.take();
  try {
    index.insert(hash, key, slot);
  } catch (...) {
    rows_.give_back(slot);
    throw;
  }
  RowHeader& row = rows_.at(slot);
  row.key = key;
  row.touched = clock;
  row.updates = 0;
  row.epoch = snapshot_.epoch();
  return slot;
}

void TableState::remove(std::uint64_t key, std::uint32_t slot) noexcept {
  snapshot_.before_change(rows_.at(slot));
  index.erase(hash_key(key), key);
  rows_.give_back(slot);
}

void TableState::remove_created() noexcept {
  for (const std::uint64_t key : created_) remove(key, index.find(hash_key(key), key));
  created_.clear();
}

void TableState::pull(std::span<const std::uint64_t> keys, std::span<float> out) {
  created_.clear();
  try {
    visit(keys, true, [&](std::size_t i, std::uint64_t hash, std::uint32_t slot) {
      if (slot == KeyIndex::kNone) slot = find_or_create(hash, keys[i]);
      RowHeader& row = rows_.at(slot);
      row.touched = clock;
      std::memcpy(out.data() + i * row_floats_, row.values(), row_floats_ * sizeof(float));
    });
  } catch (...) {
    remove_created();
    throw;
  }
}

void TableState::read(std::span<const std::uint64_t> keys, std::span<float> out) const {
  visit(keys, true, [&](std::size_t i, std::uint64_t, std::uint32_t slot) {
    float* const to = out.data() + i * row_floats_;
    if (slot == KeyIndex::kNone) return initial_weights(keys[i], to);
    std::memcpy(to, rows_.at(slot).values(), row_floats_ * sizeof(float));
  });
}

void TableState::find_or_create_all(std::span<const std::uint64_t> keys) {
  created_.clear();
  slots_.resize(keys.size());
  try {
    visit(keys, false, [&](std::size_t i, std::uint64_t hash, std::uint32_t slot) {
      slots_[i] = slot != KeyIndex::kNone ? slot : find_or_create(hash, keys[i]);
    });
  } catch (...) {
    remove_created();
    throw;
  }
}

void TableState::touch(std::span<const std::uint64_t> keys) {
  find_or_create_all(keys);
  for (const std::uint32_t slot : slots_) rows_.at(slot).touched = clock;
}

void TableState::push(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
  if (keys.empty()) return;
  sums_.take(keys, gradients);
  find_or_create_all(sums_.keys());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (i + kAhead < slots_.size()) rows_.prefetch(slots_[i + kAhead]);
    RowHeader& row = rows_.at(slots_[i]);
    snapshot_.before_change(row);
    row.touched = clock;
    if (row.updates != std::numeric_limits<std::uint32_t>::max()) ++row.updates;
    update_row(options.rule, values_of(row), sums_.gradient(i), row.updates);
  }
}

std::uint64_t TableState::evict(std::uint64_t age, std::uint64_t most) {
  std::uint64_t evicted = 0;
  const std::uint32_t high = rows_.high();
  for (std::uint64_t left = std::min<std::uint64_t>(most, high); left > 0; --left, ++evict_at_) {
    if (evict_at_ >= high) evict_at_ = 0;
    if (evict_at_ + kAhead < high) {
      const RowHeader& later = rows_.at(evict_at_ + kAhead);
      if (is_old(later, age)) index.prefetch(hash_key(later.key));
    }
    const RowHeader& row = rows_.at(evict_at_);
    if (!is_old(row, age)) continue;
    remove(row.key, evict_at_);
    ++evicted;
  }
  return evicted;
}

std::uint64_t TableState::evict_range(std::uint64_t age, std::uint64_t first, std::uint64_t last) {
  std::vector<std::uint32_t> slots;
  // Removing changes the index, so it waits until the index has been read.
  index.each(first, last, [&](std::uint32_t slot) { slots.push_back(slot); });
  std::uint64_t evicted = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (i + kAhead < slots.size()) __builtin_prefetch(&rows_.at(slots[i + kAhead]));
    const RowHeader& row = rows_.at(slots[i]);
    if (!is_old(row, age)) continue;
    remove(row.key, slots[i]);
    ++evicted;
  }
  return evicted;
}

bool TableState::insert(const SavedRow& saved) {
  const std::uint64_t hash = hash_key(saved.key);
  if (index.find(hash, saved.key) != KeyIndex::kNone) return false;
  RowHeader& row = rows_.at(add_row(hash, saved.key));
  row.touched = saved.touched;
  row.updates = saved.updates;
  std::memcpy(row.values(), saved.values, floats_of(options) * sizeof(float));
  return true;
}

}  // namespace internal
}  // namespace weft::ps
