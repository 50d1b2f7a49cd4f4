// Halving-doubling: partners first halve their data in every round, and then put it together again.
// It sends as many bytes as the ring, in 2 log2(W) rounds.
//
// Sources: Rabenseifner: Optimization of Collective Reduction Operations, 2004; broadcast: Barnett,
// Gupta, Payne, Shuler, van de Geijn, Watts: Building a high-performance collective communication
// library, 1994. W ranks, n = count, P = 2^k the largest power of two up to W. The array is cut
// into P chunks. If W > P, the surplus ranks are folded in (internal/fold.h).
//   all_reduce      Halving: partners at distance P/2, P/4 … 1 send each other the half that they
//                   do not keep, and add. Doubling: they send each other what they have. 2k rounds,
//                   2n(P-1)/P sent; folded: 2k+2 rounds and n more.
//   reduce_scatter  The halving, over the W blocks (a host also keeps its guest's block). k rounds,
//                   (W-1)n sent; folded: k+2 rounds, Wn sent.
//   broadcast       The halving distributes the chunks of root, the doubling collects them on all
//                   ranks. 2k rounds, 2n(P-1)/P sent; folded: one more round and n more.
#include <vector>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/fold.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// One rank's part of the core's work. rank_at() gives the rank of a place. Chunk p of the core is
// [edges[p], edges[p+1]) of `buffer`.
struct Core {
  Fold fold;
  int place = 0;
  Buffer buffer = Buffer::kOutput;
  std::vector<std::int64_t> edges;
  int shift = 0;  // rank of place 0: the root of a broadcast
  int world = 1;

  Range chunks(int first, int count) const {
    return {buffer, edges[first], edges[first + count] - edges[first]};
  }
  Range all() const { return chunks(0, fold.core); }
  int rank_at(int at) const { return wrap(fold.rank_at(at) + shift, world); }
};

std::vector<std::int64_t> even_edges(std::int64_t count, int parts) {
  std::vector<std::int64_t> edges;
  for (int p = 0; p <= parts; ++p) edges.push_back(part_begin(count, parts, p));
  return edges;
}

// The halving. Leaves the sum in this place's chunk. Returns the round after the last one.
int halve(const Core& core, Writer& w, int round) {
  for (int distance = core.fold.core / 2; distance >= 1; distance /= 2, ++round) {
    const int kept = core.place & ~(distance - 1);
    const int partner = core.rank_at(core.place ^ distance);
    w.at(round);
    w.send(partner, core.chunks(kept ^ distance, distance));
    w.recv_reduce(partner, core.chunks(kept, distance));
  }
  return round;
}

int twice(const Core& core, Writer& w, int round) {
  for (int distance = 1; distance < core.fold.core; distance *= 2, ++round) {
    const int held = core.place & ~(distance - 1);
    const int partner = core.rank_at(core.place ^ distance);
    w.at(round);
    w.send(partner, core.chunks(held, distance));
    w.recv(partner, core.chunks(held ^ distance, distance));
  }
  return round;
}

void halving_all_reduce(const Request& q, Writer& w) {
  const Fold fold(q.world);
  const Core core{fold,   fold.place(q.rank), Buffer::kOutput, even_edges(q.count, fold.core), 0,
                  q.world};
  const int first = fold.surplus > 0 ? 2 : 1;
  w.copy(input(0, q.count), core.all());
  w.at(1);
  if (fold.guest(q.rank)) {
    w.send(q.rank - 1, core.all());
    w.at(first + 2 * fold.levels());
    w.recv(q.rank - 1, core.all());
    return;
  }
  if (fold.host(q.rank)) w.recv_reduce(q.rank + 1, core.all());
  w.at(twice(core, w, halve(core, w, first)));
  if (fold.host(q.rank)) w.send(q.rank + 1, core.all());
}

void halving_reduce_scatter(const Request& q, Writer& w) {
  const Fold fold(q.world);
  Core core{fold, fold.place(q.rank), Buffer::kScratch, {}, 0, q.world};
  for (int p = 0; p < fold.core; ++p) core.edges.push_back(fold.rank_at(p) * q.count);
  core.edges.push_back(q.world * q.count);
  const int first = fold.surplus > 0 ? 2 : 1;
  if (fold.guest(q.rank)) {
    w.at(1);
    w.send(q.rank - 1, input(0, q.world * q.count));
    w.at(first + fold.levels());
    w.recv(q.rank - 1, output(0, q.count));
    return;
  }
  w.need_scratch(q.world * q.count);
  w.copy(input(0, q.world * q.count), core.all());
  w.at(1);
  if (fold.host(q.rank)) w.recv_reduce(q.rank + 1, core.all());
  w.at(halve(core, w, first));
  if (fold.host(q.rank)) w.send(q.rank + 1, scratch((q.rank + 1) * q.count, q.count));
  w.copy(scratch(q.rank * q.count, q.count), output(0, q.count));
}

void halving_broadcast(const Request& q, Writer& w) {
  const Fold fold(q.world);
  const int from_root = wrap(q.rank - q.root, q.world);
  const Core core{
      fold,   fold.place(from_root), Buffer::kOutput, even_edges(q.count, fold.core), q.root,
      q.world};
  if (from_root == 0) w.copy(input(0, q.count), core.all());
  if (fold.guest(from_root)) {
    w.at(1 + 2 * fold.levels());
    w.recv(wrap(q.rank - 1, q.world), core.all());
    return;
  }
  int round = 1;
  for (int distance = fold.core / 2; distance >= 1; distance /= 2, ++round) {
    w.at(round);
    const int offset = core.place % (2 * distance);
    if (offset == 0)
      w.send(core.rank_at(core.place + distance), core.chunks(core.place + distance, distance));
    if (offset == distance)
      w.recv(core.rank_at(core.place - distance), core.chunks(core.place, distance));
  }
  w.at(twice(core, w, round));
  if (fold.host(from_root)) w.send(wrap(q.rank + 1, q.world), core.all());
}

}  // namespace

Schedule make_halving_doubling(const Request& request) {
  Writer writer(request);
  switch (request.collective) {
    case Collective::kAllReduce: halving_all_reduce(request, writer); break;
    case Collective::kReduceScatter: halving_reduce_scatter(request, writer); break;
    default: halving_broadcast(request, writer); break;
  }
  return std::move(writer).done();
}

Cost cost_of_halving_doubling(const Request& q) {
  const Fold fold(q.world);
  const int folded = fold.surplus > 0 ? 1 : 0;
  if (q.collective == Collective::kReduceScatter) {
    return {fold.levels() + 2 * folded, (q.world - 1 + folded) * q.count};
  }
  // Place 0 sends the most. In the halving it sends all but the first chunk, in the doubling the
  // first chunk, the first two, the first four …
  std::int64_t sent = q.count - part_count(q.count, fold.core, 0) + folded * q.count;
  for (int held = 1; held < fold.core; held *= 2) sent += part_begin(q.count, fold.core, held);
  const int folding = q.collective == Collective::kAllReduce ? 2 * folded : folded;
  return {2 * fold.levels() + folding, sent};
}

}  // namespace weft::schedule::internal
