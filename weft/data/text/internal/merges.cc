#include "weft/data/text/internal/merges.h"

#include <algorithm>
#include <bit>

namespace weft::data::text::internal {

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(2 * merges + 2), Slot{kEmpty, {}}), mask_(slots_.size() - 1) {}

void MergeTable::add(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t pair = key(left, right);
  std::size_t at = slot(pair);
  while (slots_[at].key != kEmpty && slots_[at].key != pair) at = (at + 1) & mask_;
  slots_[at] = {pair, merge};
}

void Merger::consider(const MergeTable& table, std::int32_t at) {
  if (at < 0) return;
  const Symbol& left = symbols_[static_cast<std::size_t>(at)];
  if (left.after < 0) return;
  const Merge merge = table.find(left.id, symbols_[static_cast<std::size_t>(left.after)].id);
  if (merge.rank < 0) return;
  heap_.push_back({merge.rank, at, merge.id});
  std::push_heap(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  });
}

void Merger::merge(const MergeTable& table, std::vector<TokenId>& ids, std::size_t from) {
  const auto count = static_cast<std::int32_t>(ids.size() - from);
  symbols_.clear();
  heap_.clear();
  for (std::int32_t i = 0; i < count; ++i)
    symbols_.push_back(
        {ids[from + static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  for (std::int32_t i = 0; i < count; ++i) consider(table, i);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) {
      return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
    });
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<std::size_t>(best.at)];
    if (left.id < 0 || left.after < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.after)];
    const Merge now = table.find(left.id, right.id);
    // The candidate is out of date: one of the two symbols has been merged with another since.
    if (now.rank != best.rank || now.id != best.id) continue;
    left.id = best.id;
    left.after = right.after;
    if (right.after >= 0) symbols_[static_cast<std::size_t>(right.after)].before = best.at;
    right.id = -1;
    consider(table, left.before);
    consider(table, best.at);
  }
  ids.resize(from);
  for (const Symbol& symbol : symbols_) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

}  // namespace weft::data::text::internal
