// Binomial tree: in every round each rank that has the data gives it to one that has not, twice as far as the round before reached. The
// fewest rounds for whatever starts or ends on one rank; for short arrays.
//
// Source: Johnsson, Ho: Optimum broadcasting and personalized communication in hypercubes, 1989. Ranks are counted from root; rank v's
// parent is v without its lowest bit, its subtree the ranks from v up to v plus that bit. W ranks, n = count, K = ceil(log2 W).
//   broadcast  K rounds, K*n sent.          reduce  K rounds, n sent.
//   gather     whole subtrees go up. K rounds; the largest subtree but root's sent, at least (W/2)n for a power of two.
//   scatter    whole subtrees go down. K rounds, (W-1)n sent.
//   barrier    up, then down, without data. 2K rounds.
#include <algorithm>
#include <bit>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// One rank of the tree. Distances are 1, 2, 4 …; `reach` is the distance to the parent (the whole tree's size for root).
struct Node {
  explicit Node(const Request& q) : root(q.root), world(q.world), v(wrap(q.rank - q.root, q.world)), levels(log2_ceil(q.world)) {
    reach = v == 0 ? 1 << levels : v & -v;
  }
  int rank_at(int place) const { return wrap(root + place, world); }
  int parent() const { return rank_at(v - reach); }
  bool has_child(int distance) const { return distance < reach && v + distance < world; }
  // Ranks in the subtree that hangs `distance` away.
  int subtree(int distance) const { return std::min(distance, world - v - distance); }
  int size() const { return std::min(reach, world - v); }

  int root;
  int world;
  int v;
  int levels;
  int reach = 0;
};

int level_of(int distance) { return std::bit_width(static_cast<unsigned>(distance)) - 1; }

// Distances grow: round 1 is the leaves'.
void reduce(const Request& q, Writer& w) {
  const Node node(q);
  const Range whole = input(0, q.count);
  const bool leaf = !node.has_child(1);
  const Range sum = node.v == 0 ? output(0, q.count) : leaf ? whole : scratch(0, q.count);
  if (!leaf) w.copy(whole, sum);
  if (!leaf && node.v != 0) w.need_scratch(q.count);
  for (int distance = 1; distance < node.reach; distance *= 2) {
    w.at(1 + level_of(distance));
    if (node.has_child(distance)) w.recv_reduce(node.rank_at(node.v + distance), sum);
  }
  if (node.v == 0) return;
  w.at(1 + level_of(node.reach));
  w.send(node.parent(), sum);
}

// Distances shrink: round 1 is root's longest.
void broadcast(const Request& q, Writer& w) {
  const Node node(q);
  const Range all = output(0, q.count);
  if (node.v == 0) w.copy(input(0, q.count), all);
  if (node.v != 0) {
    w.at(node.levels - level_of(node.reach));
    w.recv(node.parent(), all);
  }
  for (int distance = node.reach / 2; distance >= 1; distance /= 2) {
    w.at(node.levels - level_of(distance));
    if (node.has_child(distance)) w.send(node.rank_at(node.v + distance), all);
  }
}

// The blocks of `blocks` ranks from `place` on lie side by side in scratch, but in the order of the ranks on root, where they may wrap
// round the end: then they are two messages.
template <typename Move>
void for_root_runs(const Request& q, const Node& node, int place, int blocks, Move&& move) {
  const int first = node.rank_at(place);
  const int before_end = std::min(blocks, q.world - first);
  move(first * q.count, std::int64_t{0}, before_end * q.count);
  move(std::int64_t{0}, before_end * q.count, (blocks - before_end) * q.count);
}

void gather(const Request& q, Writer& w) {
  const Node node(q);
  const bool leaf = node.size() == 1;
  const Range whole = input(0, q.count);
  if (node.v == 0) w.copy(whole, output(q.rank * q.count, q.count));
  if (node.v != 0 && !leaf) w.need_scratch(node.size() * q.count);
  if (node.v != 0 && !leaf) w.copy(whole, scratch(0, q.count));
  for (int distance = 1; distance < node.reach; distance *= 2) {
    if (!node.has_child(distance)) continue;
    const int child = node.rank_at(node.v + distance);
    const int blocks = node.subtree(distance);
    w.at(1 + level_of(distance));
    if (node.v != 0) w.recv(child, scratch(distance * q.count, blocks * q.count));
    if (node.v == 0) for_root_runs(q, node, distance, blocks, [&](auto begin, auto, auto count) { w.recv(child, output(begin, count)); });
  }
  if (node.v == 0) return;
  w.at(1 + level_of(node.reach));
  const Buffer held = leaf ? Buffer::kInput : Buffer::kScratch;
  if (node.v != node.reach) {
    w.send(node.parent(), {held, 0, node.size() * q.count});
  } else {
    for_root_runs(q, node, node.v, node.size(), [&](auto, auto begin, auto count) { w.send(node.parent(), {held, begin, count}); });
  }
}

void scatter(const Request& q, Writer& w) {
  const Node node(q);
  const bool leaf = node.size() == 1;
  const Buffer held = leaf ? Buffer::kOutput : Buffer::kScratch;
  if (node.v == 0) w.copy(input(q.rank * q.count, q.count), output(0, q.count));
  if (node.v != 0) {
    if (!leaf) w.need_scratch(node.size() * q.count);
    w.at(node.levels - level_of(node.reach));
    if (node.v != node.reach) {
      w.recv(node.parent(), {held, 0, node.size() * q.count});
    } else {
      for_root_runs(q, node, node.v, node.size(), [&](auto, auto begin, auto count) { w.recv(node.parent(), {held, begin, count}); });
    }
    if (!leaf) w.copy(scratch(0, q.count), output(0, q.count));
  }
  for (int distance = node.reach / 2; distance >= 1; distance /= 2) {
    if (!node.has_child(distance)) continue;
    const int child = node.rank_at(node.v + distance);
    const int blocks = node.subtree(distance);
    w.at(node.levels - level_of(distance));
    if (node.v != 0) w.send(child, scratch(distance * q.count, blocks * q.count));
    if (node.v == 0) for_root_runs(q, node, distance, blocks, [&](auto begin, auto, auto count) { w.send(child, input(begin, count)); });
  }
}

void barrier(const Request& q, Writer& w) {
  const Node node(q);
  for (int distance = 1; distance < node.reach; distance *= 2) {
    if (!node.has_child(distance)) continue;
    const int child = node.rank_at(node.v + distance);
    w.at(1 + level_of(distance));
    w.await(child);
    w.at(2 * node.levels - level_of(distance));
    w.signal(child);
  }
  if (node.v == 0) return;
  w.at(1 + level_of(node.reach));
  w.signal(node.parent());
  w.at(2 * node.levels - level_of(node.reach));
  w.await(node.parent());
}

}  // namespace

Schedule make_binomial(const Request& request) {
  Writer writer(request);
  switch (request.collective) {
    case Collective::kBroadcast: broadcast(request, writer); break;
    case Collective::kReduce: reduce(request, writer); break;
    case Collective::kGather: gather(request, writer); break;
    case Collective::kScatter: scatter(request, writer); break;
    default: barrier(request, writer); break;
  }
  return std::move(writer).done();
}

Cost cost_of_binomial(const Request& q) {
  const int levels = log2_ceil(q.world);
  const int half = 1 << (levels - 1);  // where root's farthest child is
  switch (q.collective) {
    case Collective::kBroadcast: return {levels, levels * q.count};
    case Collective::kReduce: return {levels, q.count};
    case Collective::kGather: return {levels, std::max(q.world - half, half / 2) * q.count};
    case Collective::kScatter: return {levels, (q.world - 1) * q.count};
    default: return {2 * levels, 0};
  }
}

}  // namespace weft::schedule::internal
