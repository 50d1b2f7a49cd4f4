// K-nomial tree: in every round, each rank that has the data sends it to k-1 ranks that do not. The
// binomial tree is k = 2 and sends the fewest bytes. A larger radix takes fewer rounds, but one
// rank sends more messages in each. It is for short arrays, if starting a message is cheap compared
// with its latency.
//
// Source: Johnsson, Ho: Optimum broadcasting and personalized communication in hypercubes, 1989
// (k = 2); any k: Wilkins, Guo, Thakur, Dinda, Hardavellas: Generalized collective algorithms for
// the exascale era, 2023. Ranks are counted from root. The parent of rank v is v with its lowest
// nonzero digit in base k set to 0. The subtree of v is the ranks from v on that have the same
// higher digits. W ranks, n = count, k = radix, K = ceil(log_k W).
//   broadcast  K rounds. Root sends n to each of its children: (k-1)K*n if W is a power of k.
//   reduce     K rounds, n sent.
//   gather     Whole subtrees go up. K rounds. The busiest rank sends the largest subtree below
//              root: (W/k)n if W is a power of k.
//   scatter    Whole subtrees go down. K rounds, (W-1)n sent.
//   barrier    Up, then down, without data. 2K rounds.
#include <algorithm>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// One rank of the tree. Places are ranks counted from root. A node of level j has children on each
// level l < j, at distances k^l, 2k^l, …, (k-1)k^l.
struct Node {
  explicit Node(const Request& q)
      : root(q.root), world(q.world), radix(q.radix), place(wrap(q.rank - q.root, q.world)) {
    for (std::int64_t reach = 1; reach < world; reach *= radix) ++levels;
    while (level < levels && place % (reach * radix) == 0) {
      reach *= radix;
      ++level;
    }
    if (place == 0) level = levels;
  }
  int rank_at(std::int64_t at) const { return wrap(static_cast<int>((root + at) % world), world); }
  bool is_root() const { return place == 0; }
  bool is_leaf() const { return size() == 1; }
  bool below_root() const { return parent_place() == 0; }
  std::int64_t parent_place() const { return place - place / reach % radix * reach; }
  int parent() const { return rank_at(parent_place()); }
  // Number of ranks in the subtree.
  std::int64_t size() const { return is_root() ? world : std::min(reach, world - place); }

  // Calls child(level, place, number of ranks in its subtree) for every child.
  template <typename Child>
  void for_children(Child&& child) const {
    std::int64_t distance = 1;
    for (int l = 0; l < level; ++l, distance *= radix) {
      for (std::int64_t at = place + distance;
           at < std::min<std::int64_t>(world, place + radix * distance); at += distance) {
        child(l, at, std::min(distance, world - at));
      }
    }
  }

  int root;
  std::int64_t world;
  std::int64_t radix;
  std::int64_t place;
  int levels = 0;  // number of levels of the tree
  int level = 0;
  std::int64_t reach = 1;  // k^level
};

// Nodes of level l send in round 1 + l.
void knomial_reduce(const Request& q, Writer& w) {
  const Node node(q);
  const Range whole = input(0, q.count);
  const Range sum = node.is_root()   ? output(0, q.count)
                    : node.is_leaf() ? whole
                                     : scratch(0, q.count);
  if (!node.is_leaf()) w.copy(whole, sum);
  if (!node.is_leaf() && !node.is_root()) w.need_scratch(q.count);
  node.for_children([&](int level, std::int64_t child, std::int64_t) {
    w.at(1 + level);
    w.recv_reduce(node.rank_at(child), sum);
  });
  if (node.is_root()) return;
  w.at(1 + node.level);
  w.send(node.parent(), sum);
}

// In round 1, root sends to its farthest children.
void knomial_broadcast(const Request& q, Writer& w) {
  const Node node(q);
  const Range all = output(0, q.count);
  if (node.is_root()) {
    w.copy(input(0, q.count), all);
  } else {
    w.at(node.levels - node.level);
    w.recv(node.parent(), all);
  }
  node.for_children([&](int level, std::int64_t child, std::int64_t) {
    w.at(node.levels - level);
    w.send(node.rank_at(child), all);
  });
}

// The blocks of `blocks` ranks from `place` on are adjacent in scratch. On root they are in the
// order of ranks and may wrap around the end; then they take two messages. Calls move(begin on
// root, begin in scratch, count) for each.
template <typename Move>
void for_root_runs(const Request& q, const Node& node, std::int64_t place, std::int64_t blocks,
                   Move&& move) {
  const int first = node.rank_at(place);
  const std::int64_t before_end = std::min<std::int64_t>(blocks, q.world - first);
  move(first * q.count, std::int64_t{0}, before_end * q.count);
  move(std::int64_t{0}, before_end * q.count, (blocks - before_end) * q.count);
}

void knomial_gather(const Request& q, Writer& w) {
  const Node node(q);
  const Range whole = input(0, q.count);
  if (node.is_root()) w.copy(whole, output(q.rank * q.count, q.count));
  if (!node.is_root() && !node.is_leaf()) {
    w.need_scratch(node.size() * q.count);
    w.copy(whole, scratch(0, q.count));
  }
  node.for_children([&](int level, std::int64_t place, std::int64_t blocks) {
    const int child = node.rank_at(place);
    w.at(1 + level);
    if (!node.is_root()) w.recv(child, scratch((place - node.place) * q.count, blocks * q.count));
    if (node.is_root())
      for_root_runs(q, node, place, blocks,
                    [&](auto begin, auto, auto count) { w.recv(child, output(begin, count)); });
  });
  if (node.is_root()) return;
  w.at(1 + node.level);
  const Buffer held = node.is_leaf() ? Buffer::kInput : Buffer::kScratch;
  if (!node.below_root()) return w.send(node.parent(), {held, 0, node.size() * q.count});
  for_root_runs(q, node, node.place, node.size(), [&](auto, auto begin, auto count) {
    w.send(node.parent(), {held, begin, count});
  });
}

void knomial_scatter(const Request& q, Writer& w) {
  const Node node(q);
  const Buffer held = node.is_leaf() ? Buffer::kOutput : Buffer::kScratch;
  if (node.is_root()) w.copy(input(q.rank * q.count, q.count), output(0, q.count));
  if (!node.is_root()) {
    if (!node.is_leaf()) w.need_scratch(node.size() * q.count);
    w.at(node.levels - node.level);
    const auto recv = [&](auto, auto begin, auto count) {
      w.recv(node.parent(), {held, begin, count});
    };
    if (node.below_root()) for_root_runs(q, node, node.place, node.size(), recv);
    if (!node.below_root()) recv(0, 0, node.size() * q.count);
    if (!node.is_leaf()) w.copy(scratch(0, q.count), output(0, q.count));
  }
  node.for_children([&](int level, std::int64_t place, std::int64_t blocks) {
    const int child = node.rank_at(place);
    w.at(node.levels - level);
    if (!node.is_root()) w.send(child, scratch((place - node.place) * q.count, blocks * q.count));
    if (node.is_root())
      for_root_runs(q, node, place, blocks,
                    [&](auto begin, auto, auto count) { w.send(child, input(begin, count)); });
  });
}

void knomial_barrier(const Request& q, Writer& w) {
  const Node node(q);
  node.for_children([&](int level, std::int64_t place, std::int64_t) {
    const int child = node.rank_at(place);
    w.at(1 + level);
    w.await(child);
    w.at(2 * node.levels - level);
    w.signal(child);
  });
  if (node.is_root()) return;
  w.at(1 + node.level);
  w.signal(node.parent());
  w.at(2 * node.levels - node.level);
  w.await(node.parent());
}

Request as_binomial(Request q) {
  q.radix = 2;
  return q;
}

}  // namespace

Schedule make_knomial(const Request& request) {
  Writer writer(request);
  switch (request.collective) {
    case Collective::kBroadcast: knomial_broadcast(request, writer); break;
    case Collective::kReduce: knomial_reduce(request, writer); break;
    case Collective::kGather: knomial_gather(request, writer); break;
    case Collective::kScatter: knomial_scatter(request, writer); break;
    default: knomial_barrier(request, writer); break;
  }
  return std::move(writer).done();
}

Cost cost_of_knomial(const Request& request) {
  Request q = request;
  q.rank = q.root;
  const Node root(q);
  std::int64_t children = 0;
  std::int64_t farthest = 0;  // largest subtree on the level of root's farthest children
  // Largest subtree one level below. It may be larger than an incomplete subtree of the farthest
  // children.
  std::int64_t lower = 0;
  root.for_children([&](int level, std::int64_t, std::int64_t size) {
    ++children;
    if (level == root.levels - 1) farthest = std::max(farthest, size);
    if (level == root.levels - 2) lower = std::max(lower, size);
  });
  switch (q.collective) {
    case Collective::kBroadcast: return {root.levels, children * q.count};
    case Collective::kReduce: return {root.levels, q.count};
    case Collective::kGather: return {root.levels, std::max(farthest, lower) * q.count};
    case Collective::kScatter: return {root.levels, (q.world - 1) * q.count};
    default: return {2 * root.levels, 0};
  }
}

Schedule make_binomial(const Request& request) { return make_knomial(as_binomial(request)); }
Cost cost_of_binomial(const Request& request) { return cost_of_knomial(as_binomial(request)); }

}  // namespace weft::schedule::internal
