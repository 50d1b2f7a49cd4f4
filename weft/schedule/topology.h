// Which ranks are near each other, and what moving bytes between them costs.
//
// Levels nest, outermost first: level 0 is the whole world, each further one splits the groups of the one before (racks, hosts, NUMA nodes,
// caches). Groups may be of unequal size, and their ranks need not be consecutive. Two ranks talk over the link of the innermost level
// that has both in one group. A topology is a value: it does not change, copies are independent, any thread may read it.
//
//   const auto t = Topology::hosts({4, 4, 3});   // 11 ranks on three hosts
//   t.level_of(0, 3) == 1                        // the same host: level 1, its link is shared memory
//   t.level_of(3, 4) == 0                        // different hosts: level 0, the network
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::schedule {

// What a level's groups are. Each level of a topology has another scope, in this order.
enum class Scope { kCluster, kRack, kHost, kSocket, kNuma, kCache };
const char* to_string(Scope scope);  // "cluster" …
const char* noun(Scope scope);       // the same for a sentence: "NUMA node" for "numa"

// What it costs to go from one part of a group to another, where parts are the groups of the next level (hosts in a cluster) or, on the
// innermost one, ranks: n bytes take latency + n / bandwidth, and adding them up n / reduction more. The alpha, 1 / beta and 1 / gamma of
// Thakur, Rabenseifner, Gropp 2005; the bandwidth belongs to the part, so the ranks of a host share that of its network card.
struct Link {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes/s out of one part; as many may come in at the same time
  double reduction = 0;  // bytes/s of the array that one rank adds up
  bool operator==(const Link&) const = default;
};
// For a level that nobody has measured: TCP over 10 Gbit/s Ethernet beyond the host, shared memory inside.
Link default_link(Scope scope);

struct Level {
  Scope scope = Scope::kCluster;
  Link link = default_link(Scope::kCluster);
  // Each rank's group: any numbers, the same for ranks of one group. Topology numbers them anew, in the order of their first ranks.
  std::vector<int> group_of = {};
  bool operator==(const Level&) const = default;
};

// Ranks in rows: rank = row * columns + column. `wraps`: a torus, whose rows and columns are rings; otherwise a mesh, where they end.
struct Grid {
  int rows = 1;
  int columns = 1;
  bool wraps = true;
  bool operator==(const Grid&) const = default;
};

class Topology {
 public:
  // The largest world that one can describe.
  static constexpr int kMaxWorld = 1 << 18;

  // All ranks alike.
  static Topology flat(int world, Scope scope = Scope::kCluster);
  // Hosts in the order of ranks, {4, 4, 3}: ranks 0…3 on the first. Links are the defaults.
  static Topology hosts(const std::vector<int>& ranks_of_each);
  // A torus or mesh whose links are all alike.
  static Topology grid(Grid grid, Scope scope = Scope::kCluster);
  // Any: levels[0].group_of may be empty (the world is one group) where `world` says how many ranks there are. Throws
  // Error(kInvalidArgument) where groups do not nest, lengths or scopes do not fit, a link is not positive, or a grid has not `world`
  // places.
  Topology(int world, std::vector<Level> levels, std::optional<Grid> grid = std::nullopt);

  // Strict TOML, at most 64 KiB: a table for each level that there is, its ranks by `sizes` (consecutive ones) or `group_of`; links that
  // are not given are the defaults.
  //
  //   [host]                     # cluster, rack, host, socket, numa, cache
  //   sizes = [4, 4, 3]
  //   [cluster]                  # the world itself; may be left out
  //   bandwidth = 1.25e8         # bytes/s; latency in seconds, reduction in bytes/s
  //
  // Also `world = 16` where no level says it, and [grid] rows, columns, wraps. Throws Error(kBadConfig) that names the file's line and key,
  // and the nearest known key; load() also what read_file() does.
  static Topology parse(std::string_view toml, const std::string& source);
  static Topology load(const std::string& path);
  // Text that parse() takes and that gives an equal topology.
  std::string to_toml() const;

  int world() const { return world_; }
  int num_levels() const { return static_cast<int>(levels_.size()); }
  const Level& level(int level) const { return levels_[static_cast<std::size_t>(level)]; }
  std::optional<int> find(Scope scope) const;
  const std::optional<Grid>& grid() const { return grid_; }

  int num_groups(int level) const { return static_cast<int>(members_[static_cast<std::size_t>(level)].size()); }
  int group_of(int level, int rank) const { return this->level(level).group_of[static_cast<std::size_t>(rank)]; }
  // The ranks of one group, in their order.
  const std::vector<int>& members(int level, int group) const {
    return members_[static_cast<std::size_t>(level)][static_cast<std::size_t>(group)];
  }
  // The groups of the next level that it consists of; the innermost level's consist of ranks.
  const std::vector<int>& children(int level, int group) const {
    return children_[static_cast<std::size_t>(level)][static_cast<std::size_t>(group)];
  }

  // The innermost level that has both in one group; the last one for a rank and itself.
  int level_of(int a, int b) const;
  const Link& link(int a, int b) const { return level(level_of(a, b)).link; }

  // Every rank once, those of a group next to each other on every level: the way round for a ring or a chain.
  const std::vector<int>& order() const { return order_; }
  int place_of(int rank) const { return place_[static_cast<std::size_t>(rank)]; }  // order()[place_of(r)] == r

  // "3 hosts of 4, 4 and 3 ranks", for a line of output.
  std::string describe() const;

  bool operator==(const Topology& other) const { return world_ == other.world_ && levels_ == other.levels_ && grid_ == other.grid_; }

 private:
  void number_groups();
  void find_order();

  int world_ = 1;
  std::vector<Level> levels_;
  std::vector<std::vector<std::vector<int>>> members_;   // by level and group
  std::vector<std::vector<std::vector<int>>> children_;  // the same
  std::optional<Grid> grid_;
  std::vector<int> order_;
  std::vector<int> place_;
};

}  // namespace weft::schedule
