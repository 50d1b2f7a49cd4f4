// Chain: the array goes from rank to rank in blocks. The blocks follow each other, so all links are
// busy at once. Once the chain is full, it moves the fewest bytes possible. With a topology, the
// chain passes all ranks of a group before it goes on to the next group. So each host's network
// card carries the array once in and once out. For long arrays.
//
// Source: the pipeline of Worringen: Pipelining and overlapping for MPI collective operations,
// 2003, and Patarasuk, Yuan, Faraj: Techniques for pipelined broadcast on Ethernet switched
// clusters, 2008. W ranks, n = count, K blocks (Request::chunk).
//   broadcast  From root to the end of the chain. W+K-2 rounds, n sent.
//   reduce     From the end of the chain to root. W+K-2 rounds, n sent.
#include <algorithm>
#include <numeric>
#include <vector>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// Position of a rank in the chain: its distance from root, and its neighbors towards root and away
// from root (-1 at the ends).
struct Link {
  int hops = 0;
  int towards = -1;
  int away = -1;
};

// All ranks, beginning with root. On every level, root's group comes first.
std::vector<int> order_from_root(const Request& q) {
  const Topology& t = *q.topology;
  std::vector<int> order = t.order();
  for (int l = 0; l < t.num_levels(); ++l) {
    const auto end =
        order.begin() + static_cast<std::ptrdiff_t>(t.members(l, t.group_of(l, q.root)).size());
    const bool last = l + 1 == t.num_levels();
    const auto first = std::find_if(order.begin(), end, [&](int rank) {
      return last ? rank == q.root : t.group_of(l + 1, rank) == t.group_of(l + 1, q.root);
    });
    std::rotate(order.begin(), first, end);
  }
  return order;
}

Link link_of(const Request& q) {
  const auto at = [&](int hops, auto&& rank_at) {
    return Link{hops, hops > 0 ? rank_at(hops - 1) : -1,
                hops + 1 < q.world ? rank_at(hops + 1) : -1};
  };
  if (q.topology == nullptr)
    return at(wrap(q.rank - q.root, q.world),
              [&](int hops) { return wrap(q.root + hops, q.world); });
  const std::vector<int> order = order_from_root(q);
  const auto place = std::find(order.begin(), order.end(), q.rank) - order.begin();
  return at(static_cast<int>(place),
            [&](int hops) { return order[static_cast<std::size_t>(hops)]; });
}

void chain_broadcast(const Request& q, const Link& link, Writer& w) {
  const Range all = output(0, q.count);
  const int blocks = pipeline_blocks(q, q.count);
  if (link.towards < 0) w.copy(input(0, q.count), all);
  for (int b = 0; b < blocks; ++b) {
    w.at(link.hops + b);
    if (link.towards >= 0) w.recv(link.towards, part(all, blocks, b));
    w.at(link.hops + b + 1);
    if (link.away >= 0) w.send(link.away, part(all, blocks, b));
  }
}

// A rank receives the sum of all ranks farther from root into one of two slots, adds its own input
// and sends the sum on. Only root's output is written.
void chain_reduce(const Request& q, const Link& link, Writer& w) {
  const int blocks = pipeline_blocks(q, q.count);
  const std::int64_t longest = part_count(q.count, blocks, 0);
  const bool root = link.towards < 0;
  const bool last = link.away < 0;
  if (root) w.copy(input(0, q.count), output(0, q.count));
  if (!root && !last) w.need_scratch((blocks > 1 ? 2 : 1) * longest);
  for (int b = 0; b < blocks; ++b) {
    const Range own = part(input(0, q.count), blocks, b);
    const Range slot = scratch((b % 2) * longest, own.count);
    w.at(q.world - 1 - link.hops + b);
    if (root) w.recv_reduce(link.away, {Buffer::kOutput, own.begin, own.count});
    if (root) continue;
    if (!last) w.recv(link.away, slot);
    if (!last) w.reduce(own, slot);
    w.at(q.world - link.hops + b);
    w.send(link.towards, last ? own : slot);
  }
}

}  // namespace

Schedule make_chain(const Request& request) {
  Writer writer(request);
  const Link link = link_of(request);
  if (request.collective == Collective::kBroadcast) chain_broadcast(request, link, writer);
  if (request.collective == Collective::kReduce) chain_reduce(request, link, writer);
  return std::move(writer).done();
}

Cost cost_of_chain(const Request& q) {
  return {q.world + pipeline_blocks(q, q.count) - 2, q.count};
}

}  // namespace weft::schedule::internal
