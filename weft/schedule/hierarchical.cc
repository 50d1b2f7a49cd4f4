// Hierarchical: first within the groups of the topology, then across. The slow links between hosts
// carry each element once. All ranks of a host share the traffic to other hosts; there is no
// leader.
//
// Source: for two levels, "NCCL-like" hierarchical all-reduce: Cho, Finkler, Kung, Hunter:
// BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network hierarchy, 2019.
// Here it is extended to any number of levels and to groups of unequal size (internal/spread.h).
// W ranks, n = count, L levels, H parts of the world on level 0 (hosts). The algorithm between
// these parts (Request::across) takes X rounds and sends x(n). If sizes are equal and divide n:
//   all_reduce      Up: on each inner level, counterparts send each other their parts and add, in
//                   one round. Across: each rank with its counterparts in the other hosts. Down:
//                   the reverse of up. 2(L-1) + X rounds. A rank sends 2n(1 - H/W) + x(nH/W). With
//                   a ring across, 2n(H-1)/H leave each host.
//   broadcast       Root sends each rank of its host a part. The parts go across, then down. L + X
//                   rounds (X if L = 1); n comes into each other host.
//   reduce          Up, across, then from the ranks of root's host to root. L + X rounds (X if
//                   L = 1); n leaves each other host.
//   reduce_scatter  Up: in a group, the blocks of ranks outside the group are summed and divided
//                   among its ranks. On each level, what has reached the group of its owner goes
//                   directly to the owner. L rounds; (W - W/H)n leave a host, however many ranks it
//                   has.
//   all_gather      The reverse of reduce_scatter. L rounds; (W - W/H)n come into a host.
// all_reduce, broadcast and reduce can work in blocks of Request::chunk. Each block begins one
// round after the previous one, so all levels are busy at once.
#include <algorithm>
#include <vector>

#include "weft/base/error.h"
#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/hierarchical_blocks.h"
#include "weft/schedule/internal/spread.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// One block of the array. The offsets of spread() count from its beginning.
struct Block {
  const Request& q;
  const Topology& t;
  Buffer work;  // where sums or copies are collected
  std::int64_t begin;
  std::int64_t count;
  int start;  // the round before its first one

  int inner_levels() const { return t.num_levels() - 1; }
  int group(int level) const { return t.group_of(level, q.rank); }
  Range at(Buffer buffer, std::int64_t from, std::int64_t elements) const {
    return {buffer, begin + from, elements};
  }
};

// Calls share(peer, the peer's part, this rank's part) for every counterpart on a level, this rank
// included. The parts divide the elements that all of them carry.
template <typename Share>
void for_counterparts(const Block& b, int level, Share&& share) {
  for (const Stretch& s : stretches(b.t, level, b.group(level), b.count, b.q.rank)) {
    const Range whole = b.at(b.work, s.begin, s.end - s.begin);
    const auto parts = static_cast<std::int64_t>(s.owners.size());
    const auto mine = std::find(s.owners.begin(), s.owners.end(), b.q.rank) - s.owners.begin();
    for (std::int64_t p = 0; p < parts; ++p)
      share(s.owners[static_cast<std::size_t>(p)], part(whole, parts, p), part(whole, parts, mine));
  }
}

// Ends with the sum, over this rank's group on level 1, of the part that this rank carries. On the
// innermost level the peers' parts are sent from the input, since only the rank's own part was
// copied.
void go_up(const Block& b, Writer& w) {
  const int innermost = b.inner_levels();
  for (int level = innermost; level >= 1; --level) {
    for_counterparts(b, level, [&](int peer, Range given, Range kept) {
      const Range source =
          level == innermost ? Range{Buffer::kInput, given.begin, given.count} : given;
      if (peer == b.q.rank) {
        w.at(0);
        if (level == innermost) w.copy(source, given);
        return;
      }
      w.at(b.start + 1 + innermost - level);
      w.send(peer, source);
      w.recv_reduce(peer, kept);
    });
  }
}

// In a broadcast, root has all data from the start.
void go_down(const Block& b, int after, Writer& w) {
  const auto has_all = [&](int rank) {
    return b.q.collective == Collective::kBroadcast && rank == b.q.root;
  };
  for (int level = 1; level <= b.inner_levels(); ++level) {
    w.at(after + level);
    for_counterparts(b, level, [&](int peer, Range theirs, Range mine) {
      if (peer == b.q.rank) return;
      if (!has_all(peer)) w.send(peer, mine);
      if (!has_all(b.q.rank)) w.recv(peer, theirs);
    });
  }
}

// Runs each stretch separately over the ranks that carry it. Returns the last round, which is the
// same on all ranks. `scratch` is the begin of the free scratch, and is advanced.
int go_across(const Block& b, int after, std::int64_t& scratch, Writer& w) {
  const bool rooted = b.q.collective != Collective::kAllReduce;
  Request phase{.collective = b.q.collective, .chunk = b.q.chunk, .radix = b.q.radix};
  phase.algorithm = b.q.across.value_or(rooted ? Algorithm::kChain : Algorithm::kRing);
  phase.world = static_cast<int>(b.t.children(0, 0).size());
  if (rooted) {
    const auto& parts = b.t.children(0, 0);
    const int own = b.inner_levels() == 0 ? b.q.root : b.t.group_of(1, b.q.root);
    phase.root = static_cast<int>(std::find(parts.begin(), parts.end(), own) - parts.begin());
  }
  for (const Stretch& s : stretches(b.t, 0, 0, b.count)) {
    phase.count = std::max(phase.count, s.end - s.begin);
  }
  const int last = after + cost(phase).rounds;
  for (const Stretch& s : stretches(b.t, 0, 0, b.count, b.q.rank)) {
    phase.rank =
        static_cast<int>(std::find(s.owners.begin(), s.owners.end(), b.q.rank) - s.owners.begin());
    phase.count = s.end - s.begin;
    const Schedule schedule = make(phase);
    w.embed(schedule, {.ranks = s.owners,
                       .where = b.at(b.work, s.begin, phase.count),
                       .scratch = scratch,
                       .after = after});
    scratch += schedule.scratch;
  }
  return last;
}

// Calls move(rank, part of the array) for every other rank that carries a part in root's group of
// level 1.
template <typename Move>
void for_carriers(const Block& b, Move&& move) {
  for (const Piece& piece : spread(b.t, 1, b.t.group_of(1, b.q.root), b.count)) {
    if (piece.owner != b.q.root)
      move(piece.owner, b.at(b.work, piece.begin, piece.end - piece.begin));
  }
}

void hierarchical_all_reduce(const Block& b, std::int64_t& scratch, Writer& w) {
  const int up = b.inner_levels();
  w.at(0);
  if (up == 0) w.copy(b.at(Buffer::kInput, 0, b.count), b.at(b.work, 0, b.count));
  go_up(b, w);
  go_down(b, go_across(b, b.start + up, scratch, w), w);
}

void hierarchical_broadcast(const Block& b, std::int64_t& scratch, Writer& w) {
  const bool inside = b.inner_levels() > 0;
  w.at(0);
  if (b.q.rank == b.q.root) w.copy(b.at(Buffer::kInput, 0, b.count), b.at(b.work, 0, b.count));
  w.at(b.start + 1);
  if (inside) {
    for_carriers(b, [&](int carrier, Range range) {
      if (b.q.rank == b.q.root) w.send(carrier, range);
      if (b.q.rank == carrier) w.recv(b.q.root, range);
    });
  }
  go_down(b, go_across(b, b.start + (inside ? 1 : 0), scratch, w), w);
}

void hierarchical_reduce(const Block& b, std::int64_t& scratch, Writer& w) {
  const int up = b.inner_levels();
  w.at(0);
  if (up == 0) w.copy(b.at(Buffer::kInput, 0, b.count), b.at(b.work, 0, b.count));
  go_up(b, w);
  const int last = go_across(b, b.start + up, scratch, w);
  w.at(last + 1);
  if (up == 0) return;
  for_carriers(b, [&](int carrier, Range range) {
    if (b.q.rank == carrier) w.send(b.q.root, range);
    if (b.q.rank == b.q.root) w.recv(carrier, range);
  });
}

Schedule whole_array(const Request& q, const Topology& topology) {
  Writer w(q);
  const bool private_sum = q.collective == Collective::kReduce && q.rank != q.root;
  const Buffer work = private_sum ? Buffer::kScratch : Buffer::kOutput;
  std::int64_t scratch = private_sum ? q.count : 0;
  const int blocks = q.chunk > 0 ? pipeline_blocks(q, q.count) : 1;
  for (int i = 0; i < blocks; ++i) {
    const Range range = part(input(0, q.count), blocks, i);
    const Block block{q, topology, work, range.begin, range.count, i};
    if (q.collective == Collective::kAllReduce) hierarchical_all_reduce(block, scratch, w);
    if (q.collective == Collective::kBroadcast) hierarchical_broadcast(block, scratch, w);
    if (q.collective == Collective::kReduce) hierarchical_reduce(block, scratch, w);
  }
  w.need_scratch(scratch);
  return std::move(w).done();
}

}  // namespace

Schedule make_hierarchical(const Request& q) {
  const Topology flat = Topology::flat(q.topology ? 1 : q.world);
  const Topology& topology = q.topology ? *q.topology : flat;
  if (q.collective == Collective::kReduceScatter || q.collective == Collective::kAllGather)
    return make_by_blocks(q, topology);
  return whole_array(q, topology);
}

}  // namespace weft::schedule::internal
