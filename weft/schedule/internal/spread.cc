#include "weft/schedule/internal/spread.h"

#include <algorithm>

#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

using Spread = std::vector<Piece>;

// All places where any of the spreads cuts, sorted. Groups of the same shape cut at the same
// places, so a spread like the one before it is skipped.
std::vector<std::int64_t> cuts_of(const std::vector<Spread>& spreads) {
  std::vector<std::int64_t> cuts;
  const Spread* last = nullptr;
  for (const Spread& one : spreads) {
    const auto same = [](const Piece& a, const Piece& b) { return a.end == b.end; };
    if (last != nullptr && std::equal(one.begin(), one.end(), last->begin(), last->end(), same))
      continue;
    for (const Piece& piece : one) cuts.push_back(piece.end);
    last = &one;
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

int owner_at(const Spread& spread, std::int64_t element) {
  return std::upper_bound(spread.begin(), spread.end(), element,
                          [](std::int64_t e, const Piece& p) { return e < p.end; })
      ->owner;
}

}  // namespace

std::vector<Stretch> stretches(const Topology& topology, int level, int group, std::int64_t count,
                               int rank) {
  const std::vector<int>& children = topology.children(level, group);
  std::vector<Spread> spreads;
  spreads.reserve(children.size());
  const Spread* mine = nullptr;
  for (const int child : children) {
    spreads.push_back(spread(topology, level + 1, child, count));
    const bool has_rank = level + 1 == topology.num_levels()
                              ? child == rank
                              : rank >= 0 && topology.group_of(level + 1, rank) == child;
    if (has_rank) mine = &spreads.back();
  }
  std::vector<Stretch> result;
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts_of(spreads)) {
    if (rank < 0 || (mine != nullptr && owner_at(*mine, begin) == rank)) {
      Stretch& stretch = result.emplace_back(Stretch{begin, end, {}});
      stretch.owners.reserve(spreads.size());
      for (const Spread& one : spreads) stretch.owners.push_back(owner_at(one, begin));
    }
    begin = end;
  }
  return result;
}

std::vector<Piece> spread(const Topology& topology, int level, int group, std::int64_t count) {
  if (count == 0) return {};
  if (level == topology.num_levels()) return {{0, count, group}};
  std::vector<Piece> pieces;
  const auto share = [&](std::int64_t begin, std::int64_t end, const std::vector<int>& owners) {
    const auto parts = static_cast<std::int64_t>(owners.size());
    for (std::int64_t p = 0; p < parts; ++p) {
      const std::int64_t first = begin + part_begin(end - begin, parts, p);
      const std::int64_t length = part_count(end - begin, parts, p);
      if (length > 0)
        pieces.push_back({first, first + length, owners[static_cast<std::size_t>(p)]});
    }
  };
  if (level + 1 == topology.num_levels()) {
    share(0, count, topology.members(level, group));
    return pieces;
  }
  for (const Stretch& stretch : stretches(topology, level, group, count))
    share(stretch.begin, stretch.end, stretch.owners);
  return pieces;
}

}  // namespace weft::schedule::internal
