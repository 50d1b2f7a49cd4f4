// Direct: the ranks share memory, so nothing is sent. A rank reads the data that it needs from the
// memory of its peers. Meetings (barriers) before and after keep a rank from reading data that is
// still being written.
//
// Source: the shared-memory collectives of Graham, Shipman: MPI Support for Multi-core
// Architectures, 2008, without their copy into a common segment, since input and output are in
// shared memory already. W ranks, n = count, c = ceil(n/W). Each rank reads its peers from the next
// rank on, so that not all ranks read the same peer at once.
//   all_reduce      Each rank sums its part of all inputs, then reads the peers' sums. 3 meetings,
//                   n + (W-2)c read.
//   reduce_scatter, all_gather, all_to_all  2 meetings, (W-1)n read.
//   broadcast, scatter                      2 meetings, n read.
//   reduce, gather  Root reads from all.    2 meetings, (W-1)n read.
//   barrier                                 1 meeting.
#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

void all_reduce(const Request& q, Writer& w) {
  const Range own = part(input(0, q.count), q.world, q.rank);
  const auto sum_of = [&](int rank) { return part(output(0, q.count), q.world, rank); };
  w.copy(own, sum_of(q.rank));
  for (int k = 1; k < q.world; ++k) w.read_reduce(wrap(q.rank + k, q.world), own, sum_of(q.rank));
  w.at(2);
  w.meet();
  for (int k = 1; k < q.world; ++k) {
    const int peer = wrap(q.rank + k, q.world);
    w.read(peer, sum_of(peer), sum_of(peer));
  }
}

void reduce(const Request& q, Range own, Writer& w) {
  w.copy(own, output(0, q.count));
  for (int k = 1; k < q.world; ++k)
    w.read_reduce(wrap(q.rank + k, q.world), own, output(0, q.count));
}

// `block` is the part of every peer's input that is for this rank.
void collect(const Request& q, Range block, Writer& w) {
  w.copy(block, output(q.rank * q.count, q.count));
  for (int k = 1; k < q.world; ++k) {
    const int peer = wrap(q.rank + k, q.world);
    w.read(peer, block, output(peer * q.count, q.count));
  }
}

void take(const Request& q, Range block, Writer& w) {
  if (q.rank == q.root) w.copy(block, output(0, q.count));
  if (q.rank != q.root) w.read(q.root, block, output(0, q.count));
}

void between_meetings(const Request& q, Writer& w) {
  const bool root = q.rank == q.root;
  const Range first = input(0, q.count);
  const Range mine = input(q.rank * q.count, q.count);
  switch (q.collective) {
    case Collective::kAllReduce: return all_reduce(q, w);
    case Collective::kReduceScatter: return reduce(q, mine, w);
    case Collective::kReduce: return root ? reduce(q, first, w) : void();
    case Collective::kAllGather: return collect(q, first, w);
    case Collective::kGather: return root ? collect(q, first, w) : void();
    case Collective::kAllToAll: return collect(q, mine, w);
    case Collective::kBroadcast: return take(q, first, w);
    case Collective::kScatter: return take(q, mine, w);
    case Collective::kBarrier: return;
  }
}

}  // namespace

Schedule make_direct(const Request& request) {
  Writer writer(request);
  writer.at(1);
  writer.meet();
  between_meetings(request, writer);
  writer.at(cost_of_direct(request).rounds);
  if (request.collective != Collective::kBarrier) writer.meet();
  return std::move(writer).done();
}

Cost cost_of_direct(const Request& q) {
  switch (q.collective) {
    case Collective::kAllReduce:
      return {3, q.count + (q.world - 2) * part_count(q.count, q.world, 0)};
    case Collective::kBroadcast:
    case Collective::kScatter: return {2, q.count};
    case Collective::kBarrier: return {1, 0};
    default: return {2, (q.world - 1) * q.count};
  }
}

}  // namespace weft::schedule::internal
