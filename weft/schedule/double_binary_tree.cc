// Double binary tree: two trees carry half of the data each. An inner node of one tree is a leaf of
// the other. So every rank sends and receives about as much as in a ring, over about log2(W) hops
// as in a tree.
//
// Source: Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and
// scan, 2009. The source (root, or rank 0 of an all-reduce) stands above both trees. The other W-1
// ranks are numbered 1…W-1, in order along the first tree, whose leaves are the odd nodes. The
// second tree is the first one shifted by one. W ranks, n = count, H = ceil(log2 W) hops, K blocks
// in each half. The halves are rounded up.
//   all_reduce  Blocks are added on the way up, and go down as soon as they are complete. 2H+K-1
//               rounds; 2n sent.
//   broadcast   Down only. H+K-1 rounds, n sent.
//   reduce      Up only. H+K-1 rounds, n sent.
#include <algorithm>
#include <bit>
#include <vector>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

// A rank's place in one tree. Depth counts from the source, which has depth 0 and one child.
struct Place {
  int parent = -1;
  std::vector<int> children;
  int depth = 0;
};

// Nodes are numbered 1…nodes. The parent of the topmost node is 0, the source.
int parent_of(int node, int nodes) {
  const int bit = node & -node;
  const int upper = (node ^ bit) | (bit << 1);
  return upper <= nodes ? upper : node ^ bit;
}

std::vector<int> children_of(int node, int nodes) {
  if (node == 0) return {static_cast<int>(std::bit_floor(static_cast<unsigned>(nodes)))};
  const int reach = (node & -node) / 2;
  if (reach == 0) return {};
  std::vector<int> children = {node - reach};
  for (int right = reach; right > 0; right /= 2) {
    if (node + right > nodes) continue;
    children.push_back(node + right);
    break;
  }
  return children;
}

// Ranks are counted from the source. Node v of tree 1 is the rank of node v-1 of tree 0, and node 1
// of tree 1 is the rank of the last node of tree 0.
Place place_in(int tree, const Request& q) {
  const int nodes = q.world - 1;
  const auto node_of = [&](int v) { return v == 0 || tree == 0 ? v : v % nodes + 1; };
  const auto rank_of = [&](int node) {
    const int v = node == 0 || tree == 0 ? node : (node + nodes - 2) % nodes + 1;
    return wrap(q.root + v, q.world);
  };
  const int node = node_of(wrap(q.rank - q.root, q.world));
  Place place;
  if (node != 0) place.parent = rank_of(parent_of(node, nodes));
  for (const int child : children_of(node, nodes)) place.children.push_back(rank_of(child));
  for (int at = node; at != 0; at = parent_of(at, nodes)) ++place.depth;
  return place;
}

// Sends the blocks of `sum` upwards and adds them. Ranks without children send their input
// directly. Depth d sends block b in round H - d + 1 + b.
void up(const Request& q, const Place& place, Range half, Buffer sum, Writer& w) {
  const int blocks = pipeline_blocks(q, part_count(q.count, 2, 0));
  const int height = log2_ceil(q.world);
  if (!place.children.empty()) {
    w.at(0);
    w.copy(half, {sum, half.begin, half.count});
  }
  for (int b = 0; b < blocks; ++b) {
    const Range own = part(half, blocks, b);
    const Range block = {place.children.empty() ? Buffer::kInput : sum, own.begin, own.count};
    w.at(height - place.depth + b);
    for (const int child : place.children) w.recv_reduce(child, block);
    w.at(height - place.depth + 1 + b);
    if (place.parent >= 0) w.send(place.parent, block);
  }
}

// Sends the blocks of the output downwards. Depth d sends block b in round `start` + d + 1 + b.
void down(const Request& q, const Place& place, Range half, int start, Writer& w) {
  const int blocks = pipeline_blocks(q, part_count(q.count, 2, 0));
  for (int b = 0; b < blocks; ++b) {
    const Range own = part(half, blocks, b);
    const Range block = output(own.begin, own.count);
    w.at(start + place.depth + b);
    if (place.parent >= 0) w.recv(place.parent, block);
    w.at(start + place.depth + 1 + b);
    for (const int child : place.children) w.send(child, block);
  }
}

}  // namespace

Schedule make_double_binary_tree(const Request& request) {
  Request q = request;
  if (q.collective == Collective::kAllReduce) q.root = 0;
  Writer w(q);
  const bool root = q.rank == q.root;
  if (q.collective == Collective::kBroadcast && root) w.copy(input(0, q.count), output(0, q.count));
  for (int tree = 0; tree < 2; ++tree) {
    const Place place = place_in(tree, q);
    const Range half = part(input(0, q.count), 2, tree);
    const bool private_sum = q.collective == Collective::kReduce && !root;
    if (private_sum && !place.children.empty()) w.need_scratch(q.count);
    if (q.collective != Collective::kBroadcast)
      up(q, place, half, private_sum ? Buffer::kScratch : Buffer::kOutput, w);
    if (q.collective != Collective::kReduce)
      down(q, place, half, q.collective == Collective::kAllReduce ? log2_ceil(q.world) : 0, w);
  }
  return std::move(w).done();
}

Cost cost_of_double_binary_tree(const Request& q) {
  const std::int64_t larger = part_count(q.count, 2, 0);
  const int single = log2_ceil(q.world) + pipeline_blocks(q, larger) - 1;
  // Most elements that one rank sends downwards. Some node of the first tree has two children in
  // worlds of four or more ranks, and one child in a world of three.
  const std::int64_t handed = q.world >= 4 ? 2 * larger : q.world == 3 ? larger : 0;
  switch (q.collective) {
    case Collective::kAllReduce: return {single + log2_ceil(q.world), q.count + handed};
    case Collective::kBroadcast: return {single, std::max(q.count, handed)};
    default: return {single, q.count};
  }
}

}  // namespace weft::schedule::internal
