// Recursive doubling: the data that a rank has collected doubles in every round, so log2(W) rounds
// are enough. For short arrays, where rounds cost more than bytes.
//
// Sources: all_reduce: Thakur, Rabenseifner, Gropp: Optimization of Collective Communication
// Operations in MPICH, 2005; all_gather: Bruck and others: Efficient Algorithms for All-to-All
// Communications in Multiport Message-Passing Systems, 1997; barrier: Hensgen, Finkel, Manber: Two
// algorithms for barrier synchronization, 1988. W ranks, n = count, k = floor(log2 W),
// K = ceil(log2 W).
//   all_reduce  Partners at distance 1, 2, 4… exchange the whole array. Both add, with the lower
//               rank's array on the left. k rounds, k*n sent. If W is not a power of two, one round
//               before and one after fold the surplus ranks in (internal/fold.h): k+2 rounds,
//               (k+1)n sent.
//   all_gather  Rank r receives all that rank r + 2^j has, and sends all that it has to r - 2^j,
//               for any W. K rounds, (W-1)n sent.
//   barrier     The same pattern without data (dissemination). K rounds.
#include <algorithm>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/fold.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

void doubling_all_reduce(const Request& q, Writer& w) {
  const Fold fold(q.world);
  const Range all = output(0, q.count);
  const int first = fold.surplus > 0 ? 2 : 1;
  const int last = first + fold.levels();  // round in which the guests get the result
  w.copy(input(0, q.count), all);
  if (fold.guest(q.rank)) {
    w.at(1);
    w.send(q.rank - 1, all);
    w.at(last);
    w.recv(q.rank - 1, all);
    return;
  }
  w.at(1);
  if (fold.host(q.rank)) w.recv_reduce(q.rank + 1, all);
  const int place = fold.place(q.rank);
  for (int level = 0; level < fold.levels(); ++level) {
    const int partner = fold.rank_at(place ^ (1 << level));
    w.at(first + level);
    w.send(partner, all);
    w.recv_reduce(partner, all, /*flipped=*/partner < q.rank);
  }
  w.at(last);
  if (fold.host(q.rank)) w.send(q.rank + 1, all);
}

// Rank r holds blocks r, r+1, … modulo W. Blocks that wrap around after the last rank take two
// messages.
void doubling_all_gather(const Request& q, Writer& w) {
  const auto for_runs = [&](int first, int blocks, auto&& move) {
    const int begin = wrap(first, q.world);
    const int before_end = std::min(blocks, q.world - begin);
    move(output(begin * q.count, before_end * q.count));
    move(output(0, (blocks - before_end) * q.count));
  };
  w.copy(input(0, q.count), output(q.rank * q.count, q.count));
  for (int round = 1, held = 1; held < q.world; ++round, held *= 2) {
    const int blocks = std::min(held, q.world - held);
    w.at(round);
    for_runs(q.rank, blocks, [&](Range run) { w.send(wrap(q.rank - held, q.world), run); });
    for_runs(q.rank + held, blocks, [&](Range run) { w.recv(wrap(q.rank + held, q.world), run); });
  }
}

void doubling_barrier(const Request& q, Writer& w) {
  for (int round = 1, distance = 1; distance < q.world; ++round, distance *= 2) {
    w.at(round);
    w.signal(wrap(q.rank + distance, q.world));
    w.await(wrap(q.rank - distance, q.world));
  }
}

}  // namespace

Schedule make_recursive_doubling(const Request& request) {
  Writer writer(request);
  switch (request.collective) {
    case Collective::kAllReduce: doubling_all_reduce(request, writer); break;
    case Collective::kAllGather: doubling_all_gather(request, writer); break;
    default: doubling_barrier(request, writer); break;
  }
  return std::move(writer).done();
}

Cost cost_of_recursive_doubling(const Request& q) {
  if (q.collective != Collective::kAllReduce) return {log2_ceil(q.world), (q.world - 1) * q.count};
  const Fold fold(q.world);
  const int folding = fold.surplus > 0 ? 1 : 0;
  return {fold.levels() + 2 * folding, (fold.levels() + folding) * q.count};
}

}  // namespace weft::schedule::internal
