// Topology: which ranks are near each other, and the cost of moving bytes between them.
//
// Levels nest, outermost first. Level 0 is the whole world; each further level splits the groups of
// the previous one (racks, hosts, NUMA nodes, caches). Groups may have unequal sizes, and their
// ranks need not be consecutive. Two ranks communicate over the link of the innermost level that
// has both in one group. A topology is a value: it does not change, copies are independent, and any
// thread may read it.
//
//   const auto t = Topology::hosts({4, 4, 3});   // 11 ranks on three hosts
//   t.level_of(0, 3) == 1                        // same host: level 1, linked by shared memory
//   t.level_of(3, 4) == 0                        // different hosts: level 0, the network
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::schedule {

// Kind of a level's groups. Each level of a topology has another scope, in this order.
enum class Scope { kCluster, kRack, kHost, kSocket, kNuma, kCache };
const char* to_string(Scope scope);  // "cluster" …
const char* noun(Scope scope);       // Word for sentences: "NUMA node" for "numa".

// Cost of going from one part of a group to another. Parts are the groups of the next level (hosts
// in a cluster) or, on the innermost level, ranks. n bytes take latency + n / bandwidth; adding
// them up takes n / reduction more. These are alpha, 1 / beta and 1 / gamma of Thakur,
// Rabenseifner, Gropp 2005. The bandwidth belongs to the part: the ranks of a host share that of
// its network card.
struct Link {
  double latency = 0;    // Latency in seconds.
  double bandwidth = 0;  // Bytes/s out of one part; as many may come in at the same time.
  double reduction = 0;  // Reduction speed: bytes/s of the array that one rank adds up.
  bool operator==(const Link&) const = default;
};
// Link of a level that was not measured: TCP over 10 Gbit/s Ethernet between hosts, shared memory
// within a host.
Link default_link(Scope scope);

struct Level {
  Scope scope = Scope::kCluster;
  Link link = default_link(Scope::kCluster);
  // Group of each rank: any numbers, equal for ranks of one group. Topology renumbers them in the
  // order of their first ranks.
  std::vector<int> group_of = {};
  bool operator==(const Level&) const = default;
};

// Ranks in rows: rank = row * columns + column. `wraps`: a torus, whose rows and columns are rings;
// otherwise a mesh, whose rows and columns end.
struct Grid {
  int rows = 1;
  int columns = 1;
  bool wraps = true;
  bool operator==(const Grid&) const = default;
};

class Topology {
 public:
  // Largest supported world.
  static constexpr int kMaxWorld = 1 << 18;

  // A world whose ranks are all alike.
  static Topology flat(int world, Scope scope = Scope::kCluster);
  // Hosts in the order of ranks, {4, 4, 3}: ranks 0…3 are on the first. Links are the defaults.
  static Topology hosts(const std::vector<int>& ranks_of_each);
  // A torus or mesh whose links are all alike.
  static Topology grid(Grid grid, Scope scope = Scope::kCluster);
  // Any topology. levels[0].group_of may be empty (the world is one group), since `world` is the
  // number of ranks. Throws Error(kInvalidArgument) if groups do not nest; lengths or scopes do not
  // fit; a link is not positive; a grid does not have `world` places.
  Topology(int world, std::vector<Level> levels, std::optional<Grid> grid = std::nullopt);

  // Parses strict TOML, at most 64 KiB: one table for each level that exists, with its ranks as
  // `sizes` (consecutive ranks) or `group_of`. Links that are not given are the defaults.
  //
  //   [host]                     # cluster, rack, host, socket, numa, cache
  //   sizes = [4, 4, 3]
  //   [cluster]                  # the world itself; may be left out
  //   bandwidth = 1.25e8         # bytes/s; latency in seconds, reduction in bytes/s
  //
  // Also `world = 16` if no level tells it, and [grid] rows, columns, wraps. Throws
  // Error(kBadConfig), naming line, key and the nearest known key. load() also throws as
  // read_file() does.
  static Topology parse(std::string_view toml, const std::string& source);
  static Topology load(const std::string& path);
  // Returns text from which parse() makes an equal topology.
  std::string to_toml() const;

  int world() const { return world_; }
  int num_levels() const { return static_cast<int>(levels_.size()); }
  const Level& level(int level) const { return levels_[static_cast<std::size_t>(level)]; }
  std::optional<int> find(Scope scope) const;
  const std::optional<Grid>& grid() const { return grid_; }

  int num_groups(int level) const {
    return static_cast<int>(members_[static_cast<std::size_t>(level)].size());
  }
  int group_of(int level, int rank) const {
    return this->level(level).group_of[static_cast<std::size_t>(rank)];
  }
  // Ranks of one group, in their order.
  const std::vector<int>& members(int level, int group) const {
    return members_[static_cast<std::size_t>(level)][static_cast<std::size_t>(group)];
  }
  // Groups of the next level in this group; for the innermost level, ranks.
  const std::vector<int>& children(int level, int group) const {
    return children_[static_cast<std::size_t>(level)][static_cast<std::size_t>(group)];
  }

  // The innermost level that has both ranks in one group. For a rank and itself: the last level.
  int level_of(int a, int b) const;
  const Link& link(int a, int b) const { return level(level_of(a, b)).link; }

  // Every rank once, with the ranks of a group next to each other on every level: the order of a
  // ring or a chain.
  const std::vector<int>& order() const { return order_; }
  // Inverse of order(): order()[place_of(r)] == r
  int place_of(int rank) const { return place_[static_cast<std::size_t>(rank)]; }

  // Text for a line of output: "3 hosts of 4, 4 and 3 ranks".
  std::string describe() const;

  bool operator==(const Topology& other) const {
    return world_ == other.world_ && levels_ == other.levels_ && grid_ == other.grid_;
  }

 private:
  void number_groups();
  void find_order();

  int world_ = 1;
  std::vector<Level> levels_;
  std::vector<std::vector<std::vector<int>>> members_;   // By level and group.
  std::vector<std::vector<std::vector<int>>> children_;  // By level and group.
  std::optional<Grid> grid_;
  std::vector<int> order_;
  std::vector<int> place_;
};

}  // namespace weft::schedule
