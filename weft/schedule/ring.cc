// Ring: every rank sends to the next one only, so that no link carries more than its share, at the price of as many rounds as ranks.
//
// Source: Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009. W ranks, n = count; the array is cut
// into W chunks that differ by one element at most.
//   all_reduce      chunk c travels from rank c round the ring and gathers the sum, which rank c-1 completes in round W-1; a second turn
//                   hands it out. 2(W-1) rounds; 2n less two chunks sent.
//   reduce_scatter  the first turn, begun one rank later so that block c ends on rank c. W-1 rounds, (W-1)n sent.
//   all_gather      the second turn. W-1 rounds, (W-1)n sent.
//   broadcast       a chain from root, in K blocks that follow each other. W+K-2 rounds, n sent.
//   reduce          the same chain towards root. W+K-2 rounds, n sent.
//   all_to_all      in round k everybody sends to the rank k places on. W-1 rounds, (W-1)n sent.
#include <algorithm>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

void all_reduce(const Request& q, Writer& w) {
  const Range all = output(0, q.count);
  const auto chunk = [&](int c) { return part(all, q.world, wrap(c, q.world)); };
  const int next = wrap(q.rank + 1, q.world);
  const int previous = wrap(q.rank - 1, q.world);
  w.copy(input(0, q.count), all);
  for (int k = 1; k < q.world; ++k) {
    w.at(k);
    w.send(next, chunk(q.rank - k + 1));
    w.recv_reduce(previous, chunk(q.rank - k));
    w.at(q.world - 1 + k);
    w.send(next, chunk(q.rank - k + 2));
    w.recv(previous, chunk(q.rank - k + 1));
  }
}

// The sum so far is received into one of two slots, and goes on from there while the next one comes into the other.
void reduce_scatter(const Request& q, Writer& w) {
  const auto block = [&](int b) { return input(wrap(b, q.world) * q.count, q.count); };
  const auto slot = [&](int k) { return k == q.world - 1 ? output(0, q.count) : scratch(((k - 1) % 2) * q.count, q.count); };
  w.need_scratch(std::min(2, q.world - 2) * q.count);
  for (int k = 1; k < q.world; ++k) {
    w.at(k);
    w.send(wrap(q.rank + 1, q.world), k == 1 ? block(q.rank - 1) : slot(k - 1));
    w.recv(wrap(q.rank - 1, q.world), slot(k));
    w.reduce(block(q.rank - k - 1), slot(k));
  }
}

void all_gather(const Request& q, Writer& w) {
  const auto block = [&](int b) { return output(wrap(b, q.world) * q.count, q.count); };
  w.copy(input(0, q.count), block(q.rank));
  for (int k = 1; k < q.world; ++k) {
    w.at(k);
    w.send(wrap(q.rank + 1, q.world), block(q.rank - k + 1));
    w.recv(wrap(q.rank - 1, q.world), block(q.rank - k));
  }
}

void broadcast(const Request& q, Writer& w) {
  const Range all = output(0, q.count);
  const int blocks = pipeline_blocks(q.count);
  const int hops = wrap(q.rank - q.root, q.world);  // from root
  if (hops == 0) w.copy(input(0, q.count), all);
  for (int b = 0; b < blocks; ++b) {
    w.at(hops + b);
    if (hops > 0) w.recv(wrap(q.rank - 1, q.world), part(all, blocks, b));
    w.at(hops + b + 1);
    if (hops < q.world - 1) w.send(wrap(q.rank + 1, q.world), part(all, blocks, b));
  }
}

// Rank v of the chain receives from v+1, adds its own and sends to v-1; only root's output is touched.
void reduce(const Request& q, Writer& w) {
  const int blocks = pipeline_blocks(q.count);
  const int hops = wrap(q.rank - q.root, q.world);
  const bool last = hops == q.world - 1;
  const std::int64_t longest = part_count(q.count, blocks, 0);
  if (hops == 0) w.copy(input(0, q.count), output(0, q.count));
  if (hops > 0 && !last) w.need_scratch((blocks > 1 ? 2 : 1) * longest);
  for (int b = 0; b < blocks; ++b) {
    const Range own = part(input(0, q.count), blocks, b);
    const Range slot = scratch((b % 2) * longest, own.count);
    w.at(q.world - 1 - hops + b);
    if (hops == 0) w.recv_reduce(wrap(q.rank + 1, q.world), {Buffer::kOutput, own.begin, own.count});
    if (hops == 0) continue;
    if (!last) w.recv(wrap(q.rank + 1, q.world), slot);
    if (!last) w.reduce(own, slot);
    w.at(q.world - hops + b);
    w.send(wrap(q.rank - 1, q.world), last ? own : slot);
  }
}

void all_to_all(const Request& q, Writer& w) {
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
    case Collective::kAllReduce: all_reduce(request, writer); break;
    case Collective::kReduceScatter: reduce_scatter(request, writer); break;
    case Collective::kAllGather: all_gather(request, writer); break;
    case Collective::kBroadcast: broadcast(request, writer); break;
    case Collective::kReduce: reduce(request, writer); break;
    default: all_to_all(request, writer); break;
  }
  return std::move(writer).done();
}

Cost cost_of_ring(const Request& q) {
  const std::int64_t n = q.count;
  switch (q.collective) {
    case Collective::kAllReduce:  // the busiest rank skips the two shortest chunks, one in each turn
      return {2 * (q.world - 1), 2 * n - part_count(n, q.world, q.world - 1) - part_count(n, q.world, q.world - 2)};
    case Collective::kBroadcast:
    case Collective::kReduce: return {q.world + pipeline_blocks(n) - 2, n};
    default: return {q.world - 1, (q.world - 1) * n};
  }
}

}  // namespace weft::schedule::internal
