// Sharded: every rank owns one part of the array and communicates directly with all other ranks. It
// moves the fewest bytes in the fewest rounds. It needs a network that carries all pairs at once:
// inside a host, behind a good switch, or between a server's shards and its clients.
//
// Source: the direct-exchange reduce-scatter of Thakur, Rabenseifner, Gropp (2005) for both halves.
// With the shards on servers it is the parameter server of Li and others: Scaling Distributed
// Machine Learning with the Parameter Server, 2014. W ranks, n = count, c = ceil(n/W). Operands are
// added along the balanced binary tree over the ranks, ((0+1)+(2+3))+…, whichever rank owns the
// part and whichever message arrives first. This is the order of kernels/reduce.h, so ranks that
// read each other's memory get the same bits.
//   all_reduce      Every rank sends each owner its part. Owners add and send the sum to all ranks.
//                   2 rounds, n + (W-2)c sent.
//   reduce_scatter  The first half of all_reduce. 1 round, (W-1)n sent.
//   all_gather, all_to_all  1 round, (W-1)n sent.
//   broadcast       Root sends each rank a part. Each rank sends its part to all ranks. 2 rounds,
//                   n + (W-2)c sent.
//   gather          All ranks send to root. 1 round, n sent.
//   scatter         Root sends to all ranks. 1 round, (W-1)n sent.
#include <bit>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// Range that holds the contribution of `rank` to `own`.
Range place_of(const Request& q, Range own, int rank) {
  return rank == q.rank ? own : scratch((wrap(rank - q.rank, q.world) - 1) * own.count, own.count);
}

// Adds the contributions of `count` ranks from `first` on. Returns the range of the sum: that of
// the owner if it is among these ranks, else that of the first.
Range add(const Request& q, Range own, int first, int count, Writer& w) {
  if (count == 1) return place_of(q, own, first);
  const int left = static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
  const Range a = add(q, own, first, left, w), b = add(q, own, first + left, count - left, w);
  const bool right = q.rank >= first + left && q.rank < first + count;
  w.reduce(right ? a : b, right ? b : a, /*flipped=*/right);
  return right ? b : a;
}

// Receives the peers' contributions to `own` side by side, then adds them.
void sharded_collect(const Request& q, Range own, Writer& w) {
  w.need_scratch((q.world - 1) * own.count);
  for (int k = 1; k < q.world; ++k)
    w.recv(wrap(q.rank + k, q.world), place_of(q, own, wrap(q.rank + k, q.world)));
  add(q, own, 0, q.world, w);
}

void sharded_all_reduce(const Request& q, Writer& w) {
  const Range all = output(0, q.count);
  const Range own = part(all, q.world, q.rank);
  w.copy(input(0, q.count), all);
  w.at(1);
  for (int k = 1; k < q.world; ++k)
    w.send(wrap(q.rank - k, q.world), part(all, q.world, wrap(q.rank - k, q.world)));
  sharded_collect(q, own, w);
  w.at(2);
  for (int k = 1; k < q.world; ++k) {
    w.send(wrap(q.rank + k, q.world), own);
    w.recv(wrap(q.rank - k, q.world), part(all, q.world, wrap(q.rank - k, q.world)));
  }
}

void sharded_reduce_scatter(const Request& q, Writer& w) {
  const Range own = output(0, q.count);
  w.copy(input(q.rank * q.count, q.count), own);
  w.at(1);
  for (int k = 1; k < q.world; ++k) {
    const int to = wrap(q.rank - k, q.world);
    w.send(to, input(to * q.count, q.count));
  }
  sharded_collect(q, own, w);
}

// all_gather sends one block to all ranks, all_to_all a different block to each.
void sharded_exchange(const Request& q, Writer& w) {
  const auto block_for = [&](int peer) {
    return input(q.collective == Collective::kAllToAll ? peer * q.count : 0, q.count);
  };
  const auto block_of = [&](int peer) { return output(peer * q.count, q.count); };
  w.copy(block_for(q.rank), block_of(q.rank));
  w.at(1);
  for (int k = 1; k < q.world; ++k) {
    const int to = wrap(q.rank + k, q.world);
    const int from = wrap(q.rank - k, q.world);
    w.send(to, block_for(to));
    w.recv(from, block_of(from));
  }
}

// Parts are counted from root, so that root's is the longest.
void sharded_broadcast(const Request& q, Writer& w) {
  const Range all = output(0, q.count);
  const auto part_of = [&](int rank) { return part(all, q.world, wrap(rank - q.root, q.world)); };
  const bool root = q.rank == q.root;
  if (root) w.copy(input(0, q.count), all);
  w.at(1);
  for (int k = 1; k < q.world && root; ++k) w.send(wrap(q.rank + k, q.world), part_of(q.rank + k));
  if (!root) w.recv(q.root, part_of(q.rank));
  w.at(2);
  for (int k = 1; k < q.world; ++k) {
    const int to = wrap(q.rank + k, q.world);
    const int from = wrap(q.rank - k, q.world);
    if (to != q.root) w.send(to, part_of(q.rank));
    if (!root) w.recv(from, part_of(from));
  }
}

void sharded_gather(const Request& q, Writer& w) {
  if (q.rank != q.root) {
    w.at(1);
    w.send(q.root, input(0, q.count));
    return;
  }
  w.copy(input(0, q.count), output(q.root * q.count, q.count));
  w.at(1);
  for (int k = 1; k < q.world; ++k) {
    const int from = wrap(q.root + k, q.world);
    w.recv(from, output(from * q.count, q.count));
  }
}

void sharded_scatter(const Request& q, Writer& w) {
  if (q.rank != q.root) {
    w.at(1);
    w.recv(q.root, output(0, q.count));
    return;
  }
  w.copy(input(q.root * q.count, q.count), output(0, q.count));
  w.at(1);
  for (int k = 1; k < q.world; ++k) {
    const int to = wrap(q.root + k, q.world);
    w.send(to, input(to * q.count, q.count));
  }
}

}  // namespace

Schedule make_sharded(const Request& request) {
  Writer writer(request);
  switch (request.collective) {
    case Collective::kAllReduce: sharded_all_reduce(request, writer); break;
    case Collective::kReduceScatter: sharded_reduce_scatter(request, writer); break;
    case Collective::kBroadcast: sharded_broadcast(request, writer); break;
    case Collective::kGather: sharded_gather(request, writer); break;
    case Collective::kScatter: sharded_scatter(request, writer); break;
    default: sharded_exchange(request, writer); break;
  }
  return std::move(writer).done();
}

Cost cost_of_sharded(const Request& q) {
  switch (q.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
      return {2, q.count + (q.world - 2) * part_count(q.count, q.world, 0)};
    case Collective::kGather: return {1, q.count};
    default: return {1, (q.world - 1) * q.count};
  }
}

}  // namespace weft::schedule::internal
