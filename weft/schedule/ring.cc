// Ring: every rank sends only to the next rank, so no link carries more than its share. It takes
// about as many rounds as there are ranks.
//
// Source: Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations,
// 2009. W ranks, n = count. The array is cut into W chunks that differ by at most one element. The
// ring follows the topology's order, in which the ranks of a host are adjacent. So each host's
// network card carries one stream in and one stream out.
//   all_reduce      Chunk c travels from rank c around the ring and collects the sum, which rank
//                   c-1 completes in round W-1. A second turn distributes the sum. 2(W-1) rounds;
//                   2n minus two chunks sent.
//   reduce_scatter  The first turn, started one rank later so that block c ends on rank c. W-1
//                   rounds, (W-1)n sent.
//   all_gather      The second turn. W-1 rounds, (W-1)n sent.
//   all_to_all      In round k, every rank sends to the rank k places ahead. W-1 rounds, (W-1)n
//                   sent.
#include <algorithm>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// Places in the ring. Without a topology, a rank's place is its number.
struct Ring {
  explicit Ring(const Request& q)
      : topology(q.topology.get()),
        world(q.world),
        place(topology ? topology->place_of(q.rank) : q.rank) {}
  int rank_at(int at) const {
    return topology ? topology->order()[static_cast<std::size_t>(wrap(at, world))]
                    : wrap(at, world);
  }
  int next() const { return rank_at(place + 1); }
  int previous() const { return rank_at(place - 1); }

  const Topology* topology;
  int world;
  int place;
};

void ring_all_reduce(const Request& q, Writer& w) {
  const Ring ring(q);
  const Range all = output(0, q.count);
  const auto chunk = [&](int c) { return part(all, q.world, wrap(c, q.world)); };
  w.copy(input(0, q.count), all);
  for (int k = 1; k < q.world; ++k) {
    w.at(k);
    w.send(ring.next(), chunk(ring.place - k + 1));
    w.recv_reduce(ring.previous(), chunk(ring.place - k));
    w.at(q.world - 1 + k);
    w.send(ring.next(), chunk(ring.place - k + 2));
    w.recv(ring.previous(), chunk(ring.place - k + 1));
  }
}

// The partial sum is received into one of two slots and sent on from there, while the next one
// arrives in the other slot.
void ring_reduce_scatter(const Request& q, Writer& w) {
  const Ring ring(q);
  const auto block = [&](int at) { return input(ring.rank_at(at) * q.count, q.count); };
  const auto slot = [&](int k) {
    return k == q.world - 1 ? output(0, q.count) : scratch(((k - 1) % 2) * q.count, q.count);
  };
  w.need_scratch(std::min(2, q.world - 2) * q.count);
  for (int k = 1; k < q.world; ++k) {
    w.at(k);
    w.send(ring.next(), k == 1 ? block(ring.place - 1) : slot(k - 1));
    w.recv(ring.previous(), slot(k));
    w.reduce(block(ring.place - k - 1), slot(k));
  }
}

void ring_all_gather(const Request& q, Writer& w) {
  const Ring ring(q);
  const auto block = [&](int at) { return output(ring.rank_at(at) * q.count, q.count); };
  w.copy(input(0, q.count), block(ring.place));
  for (int k = 1; k < q.world; ++k) {
    w.at(k);
    w.send(ring.next(), block(ring.place - k + 1));
    w.recv(ring.previous(), block(ring.place - k));
  }
}

void ring_all_to_all(const Request& q, Writer& w) {
  w.copy(input(q.rank * q.count, q.count), output(q.rank * q.count, q.count));
  for (int k = 1; k < q.world; ++k) {
    const int to = wrap(q.rank + k, q.world);
    const int from = wrap(q.rank - k, q.world);
    w.at(k);
    w.send(to, input(to * q.count, q.count));
    w.recv(from, output(from * q.count, q.count));
  }
}

}  // namespace

Schedule make_ring(const Request& request) {
  Writer writer(request);
  switch (request.collective) {
    case Collective::kAllReduce: ring_all_reduce(request, writer); break;
    case Collective::kReduceScatter: ring_reduce_scatter(request, writer); break;
    case Collective::kAllGather: ring_all_gather(request, writer); break;
    default: ring_all_to_all(request, writer); break;
  }
  return std::move(writer).done();
}

Cost cost_of_ring(const Request& q) {
  const std::int64_t n = q.count;
  switch (q.collective) {
    // The busiest rank does not send the two shortest chunks, one in each turn.
    case Collective::kAllReduce:
      return {2 * (q.world - 1),
              2 * n - part_count(n, q.world, q.world - 1) - part_count(n, q.world, q.world - 2)};
    default: return {q.world - 1, (q.world - 1) * n};
  }
}

}  // namespace weft::schedule::internal
