#include "weft/schedule/internal/hierarchical_blocks.h"

#include <algorithm>
#include <vector>

#include "weft/schedule/internal/spread.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// Elements that one rank sends to another in a reduce_scatter; in an all_gather they go the other
// way. Offsets count through the blocks of all ranks. A rank sends each element at most once per
// level.
struct LevelTransfer {
  int level = 0;
  int from = 0;
  int to = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// All transfers of one rank. The blocks of a group's ranks follow each other in the group's own
// array, to which the offsets of spread() refer. `whose` are these ranks.
class Blocks {
 public:
  Blocks(const Request& q, const Topology& t) : q_(q), t_(t) {
    for (int level = t.num_levels() - 1; level >= 0; --level) {
      hand_over(level);
      take(level);
      share_out(level);
    }
    std::sort(transfers_.begin(), transfers_.end(),
              [](const LevelTransfer& a, const LevelTransfer& b) {
                return a.level != b.level ? a.level > b.level : a.begin < b.begin;
              });
  }

  // Innermost level first, then by offset in the array. So both ends of several messages list them
  // in the same order.
  const std::vector<LevelTransfer>& transfers() const { return transfers_; }
  // Ranges of the array that this rank sums for ranks of other groups on the innermost level.
  const std::vector<Range>& carried() const { return carried_; }

 private:
  // On level num_levels(), each group is a single rank.
  int group(int level) const {
    return level == t_.num_levels() ? q_.rank : t_.group_of(level, q_.rank);
  }
  const std::vector<int>& siblings(int level) const {
    return t_.children(level - 1, group(level - 1));
  }
  std::vector<int> members(int level, int group) const {
    return level == t_.num_levels() ? std::vector{group} : t_.members(level, group);
  }
  std::int64_t length(const std::vector<int>& whose) const {
    return static_cast<std::int64_t>(whose.size()) * q_.count;
  }

  // Cuts [begin, end) of the array of `whose` into pieces of one rank's block each. Calls
  // move(rank, begin in the whole array, count) for each piece.
  template <typename Move>
  void for_blocks(const std::vector<int>& whose, std::int64_t begin, std::int64_t end,
                  Move&& move) const {
    while (begin < end) {
      const std::int64_t index = begin / q_.count;
      const std::int64_t stop = std::min(end, (index + 1) * q_.count);
      const int rank = whose[static_cast<std::size_t>(index)];
      move(rank, rank * q_.count + begin - index * q_.count, stop - begin);
      begin = stop;
    }
  }
  // The same pieces as ranges. Adjacent pieces are joined.
  std::vector<Range> ranges(const std::vector<int>& whose, std::int64_t begin,
                            std::int64_t end) const {
    std::vector<Range> result;
    for_blocks(whose, begin, end, [&](int, std::int64_t first, std::int64_t count) {
      const bool adjacent = !result.empty() && result.back().begin + result.back().count == first;
      if (adjacent) result.back().count += count;
      if (!adjacent) result.push_back(input(first, count));
    });
    return result;
  }

  // Sends what this rank carries for the ranks of the level's other child groups to these ranks.
  void hand_over(int level) {
    for (const int sibling : siblings(level + 1)) {
      if (sibling == group(level + 1)) continue;
      const std::vector<int> whose = members(level + 1, sibling);
      for (const Piece& piece : spread(t_, level + 1, group(level + 1), length(whose))) {
        if (piece.owner != q_.rank) continue;
        for_blocks(whose, piece.begin, piece.end,
                   [&](int rank, std::int64_t begin, std::int64_t count) {
                     transfers_.push_back({level, q_.rank, rank, begin, count});
                   });
      }
    }
  }

  // Receives what the ranks of the other child groups carry for this rank.
  void take(int level) {
    const std::vector<int> whose = members(level + 1, group(level + 1));
    const std::int64_t own =
        (std::find(whose.begin(), whose.end(), q_.rank) - whose.begin()) * q_.count;
    for (const int sibling : siblings(level + 1)) {
      if (sibling == group(level + 1)) continue;
      for (const Piece& piece : spread(t_, level + 1, sibling, length(whose))) {
        const std::int64_t begin = std::max(piece.begin, own),
                           end = std::min(piece.end, own + q_.count);
        if (begin < end)
          transfers_.push_back(
              {level, piece.owner, q_.rank, q_.rank * q_.count + begin - own, end - begin});
      }
    }
  }

  // Divides the blocks of ranks outside the level's group among the counterparts in the group.
  void share_out(int level) {
    for (int outer = level; outer >= 1; --outer) {
      for (const int sibling : siblings(outer)) {
        if (sibling != group(outer)) share_out(level, t_.members(outer, sibling));
      }
    }
  }
  void share_out(int level, const std::vector<int>& whose) {
    for (const Stretch& s : stretches(t_, level, group(level), length(whose), q_.rank)) {
      const auto parts = static_cast<std::int64_t>(s.owners.size());
      const auto part_at = [&](std::int64_t p) {
        const std::int64_t begin = s.begin + part_begin(s.end - s.begin, parts, p);
        return ranges(whose, begin, begin + part_count(s.end - s.begin, parts, p));
      };
      const auto mine =
          part_at(std::find(s.owners.begin(), s.owners.end(), q_.rank) - s.owners.begin());
      if (level + 1 == t_.num_levels()) carried_.insert(carried_.end(), mine.begin(), mine.end());
      for (std::int64_t p = 0; p < parts; ++p) {
        const int peer = s.owners[static_cast<std::size_t>(p)];
        if (peer == q_.rank) continue;
        for (const Range& given : part_at(p))
          transfers_.push_back({level, q_.rank, peer, given.begin, given.count});
        for (const Range& kept : mine)
          transfers_.push_back({level, peer, q_.rank, kept.begin, kept.count});
      }
    }
  }

  const Request& q_;
  const Topology& t_;
  std::vector<LevelTransfer> transfers_;
  std::vector<Range> carried_;
};

Schedule reduce_scatter(const Request& q, const Topology& t) {
  const Blocks blocks(q, t);
  const int levels = t.num_levels();
  const std::int64_t own = q.rank * q.count;
  Writer w(q);
  if (levels > 1) w.need_scratch(q.world * q.count);
  w.copy(input(own, q.count), output(0, q.count));
  for (const Range& range : blocks.carried()) w.copy(range, scratch(range.begin, range.count));
  for (const LevelTransfer& t : blocks.transfers()) {
    w.at(levels - t.level);
    if (t.from == q.rank)
      w.send(t.to, {t.level == levels - 1 ? Buffer::kInput : Buffer::kScratch, t.begin, t.count});
    const bool mine = t.begin >= own && t.begin < own + q.count;
    if (t.to == q.rank)
      w.recv_reduce(t.from, mine ? output(t.begin - own, t.count) : scratch(t.begin, t.count));
  }
  return std::move(w).done();
}

Schedule all_gather(const Request& q, const Topology& t) {
  const Blocks blocks(q, t);
  Writer w(q);
  w.copy(input(0, q.count), output(q.rank * q.count, q.count));
  for (const LevelTransfer& t : blocks.transfers()) {
    w.at(1 + t.level);
    if (t.to == q.rank) w.send(t.from, output(t.begin, t.count));
    if (t.from == q.rank) w.recv(t.to, output(t.begin, t.count));
  }
  return std::move(w).done();
}

}  // namespace

Schedule make_by_blocks(const Request& request, const Topology& topology) {
  return request.collective == Collective::kReduceScatter ? reduce_scatter(request, topology)
                                                          : all_gather(request, topology);
}

}  // namespace weft::schedule::internal
