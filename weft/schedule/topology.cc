#include "weft/schedule/topology.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/text/words.h"

namespace weft::schedule {
namespace {

constexpr const char* kScopeNames[] = {"cluster", "rack", "host", "socket", "numa", "cache"};

std::string text(int number) { return std::to_string(number); }

void check_level(const Level& level, int world) {
  const std::string name = to_string(level.scope);
  WEFT_REQUIRE(static_cast<int>(level.group_of.size()) == world,
               "level " + name + " has a group for " +
                   text(static_cast<int>(level.group_of.size())) + " ranks of " + text(world));
  const Link& link = level.link;
  WEFT_REQUIRE(link.latency >= 0 && link.bandwidth > 0 && link.reduction > 0,
               "the link of level " + name +
                   " needs a bandwidth and a reduction above 0 and a latency of at least 0");
}

void check_nesting(const Level& outer, const Level& inner) {
  WEFT_REQUIRE(outer.scope < inner.scope, std::string("level ") + to_string(inner.scope) +
                                              " comes after " + to_string(outer.scope) +
                                              ": levels go inwards, each once");
  std::map<int, int> outer_of;
  for (std::size_t rank = 0; rank < inner.group_of.size(); ++rank) {
    const auto [known, added] = outer_of.emplace(inner.group_of[rank], outer.group_of[rank]);
    WEFT_REQUIRE(known->second == outer.group_of[rank],
                 "rank " + std::to_string(rank) + " shares a " + to_string(inner.scope) +
                     " with ranks of another " + to_string(outer.scope) + "; groups must nest");
  }
}

// "3 hosts of 4, 4 and 3 ranks", "8 hosts of 4 ranks".
std::string describe_level(const char* scope, const std::vector<std::vector<int>>& groups) {
  const bool equal = std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
    return group.size() == groups[0].size();
  });
  std::string out =
      std::to_string(groups.size()) + " " + scope + (groups.size() > 1 ? "s of " : " of ");
  constexpr std::size_t kShown = 8;
  const std::size_t shown = equal ? 1 : std::min(groups.size(), kShown);
  for (std::size_t g = 0; g < shown; ++g) {
    const bool last = g + 1 == shown && shown == groups.size();
    out += (g == 0 ? "" : last ? " and " : ", ") + std::to_string(groups[g].size());
  }
  if (!equal && shown < groups.size()) out += " …";
  return out + (equal && groups[0].size() == 1 ? " rank" : " ranks");
}

}  // namespace

const char* to_string(Scope scope) { return kScopeNames[static_cast<int>(scope)]; }

const char* noun(Scope scope) { return scope == Scope::kNuma ? "NUMA node" : to_string(scope); }

Link default_link(Scope scope) {
  switch (scope) {
    case Scope::kCluster: return {30e-6, 1.25e9, 4e9};
    case Scope::kRack: return {20e-6, 1.25e9, 4e9};
    case Scope::kHost: return {1e-6, 5e9, 4e9};
    case Scope::kSocket: return {0.8e-6, 6e9, 4e9};
    case Scope::kNuma: return {0.6e-6, 8e9, 4e9};
    case Scope::kCache: return {0.3e-6, 12e9, 4e9};
  }
  return {};
}

Topology Topology::flat(int world, Scope scope) {
  return Topology(world, {{scope, default_link(scope), {}}});
}

Topology Topology::hosts(const std::vector<int>& ranks_of_each) {
  Level host{Scope::kHost, default_link(Scope::kHost), {}};
  std::int64_t world = 0;
  for (std::size_t h = 0; h < ranks_of_each.size(); ++h) {
    WEFT_REQUIRE(ranks_of_each[h] >= 1, "host " + std::to_string(h) + " has no rank");
    world += ranks_of_each[h];
    WEFT_REQUIRE(world <= kMaxWorld, "a topology of more than " + text(kMaxWorld) + " ranks");
    host.group_of.insert(host.group_of.end(), static_cast<std::size_t>(ranks_of_each[h]),
                         static_cast<int>(h));
  }
  return Topology(static_cast<int>(world),
                  {{Scope::kCluster, default_link(Scope::kCluster), {}}, std::move(host)});
}

Topology Topology::grid(Grid grid, Scope scope) {
  WEFT_REQUIRE(grid.rows >= 1 && grid.columns >= 1, "a grid needs at least one row and one column");
  const std::int64_t world = static_cast<std::int64_t>(grid.rows) * grid.columns;
  WEFT_REQUIRE(world <= kMaxWorld, "a topology of more than " + text(kMaxWorld) + " ranks");
  return Topology(static_cast<int>(world), {{scope, default_link(scope), {}}}, grid);
}

Topology::Topology(int world, std::vector<Level> levels, std::optional<Grid> grid)
    : world_(world), levels_(std::move(levels)), grid_(grid) {
  WEFT_REQUIRE(world >= 1 && world <= kMaxWorld, "a topology of " + text(world) + " ranks; 1 to " +
                                                     text(kMaxWorld) + " can be described");
  WEFT_REQUIRE(!levels_.empty(),
               "a topology without levels; flat() makes one of ranks that are all alike");
  if (levels_[0].group_of.empty()) levels_[0].group_of.assign(static_cast<std::size_t>(world), 0);
  for (const Level& level : levels_) check_level(level, world);
  for (const int group : levels_[0].group_of) {
    WEFT_REQUIRE(group == levels_[0].group_of[0],
                 "the outermost level must hold the whole world in one group");
  }
  for (std::size_t l = 1; l < levels_.size(); ++l) check_nesting(levels_[l - 1], levels_[l]);
  if (grid_) {
    WEFT_REQUIRE(grid_->rows >= 1 && grid_->columns >= 1 &&
                     static_cast<std::int64_t>(grid_->rows) * grid_->columns == world,
                 "a grid of " + text(grid_->rows) + " x " + text(grid_->columns) +
                     " has not a place for each of " + text(world) + " ranks");
  }
  number_groups();
  find_order();
}

void Topology::number_groups() {
  for (Level& level : levels_) {
    std::map<int, int> number;
    auto& groups = members_.emplace_back();
    for (int rank = 0; rank < world_; ++rank) {
      int& group = level.group_of[static_cast<std::size_t>(rank)];
      group = number.emplace(group, static_cast<int>(number.size())).first->second;
      if (group == static_cast<int>(groups.size())) groups.emplace_back();
      groups[static_cast<std::size_t>(group)].push_back(rank);
    }
  }
  children_.resize(levels_.size());
  for (std::size_t l = 0; l + 1 < levels_.size(); ++l) {
    children_[l].resize(members_[l].size());
    for (std::size_t g = 0; g < members_[l + 1].size(); ++g) {
      const auto parent = group_of(static_cast<int>(l), members_[l + 1][g][0]);
      children_[l][static_cast<std::size_t>(parent)].push_back(static_cast<int>(g));
    }
  }
  children_.back() = members_.back();
}

void Topology::find_order() {
  order_.resize(static_cast<std::size_t>(world_));
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    for (int l = 0; l < num_levels(); ++l) {
      if (group_of(l, a) != group_of(l, b)) return group_of(l, a) < group_of(l, b);
    }
    return false;
  });
  place_.resize(order_.size());
  for (int place = 0; place < world_; ++place)
    place_[static_cast<std::size_t>(order_[static_cast<std::size_t>(place)])] = place;
}

std::optional<int> Topology::find(Scope scope) const {
  for (int l = 0; l < num_levels(); ++l) {
    if (level(l).scope == scope) return l;
  }
  return std::nullopt;
}

int Topology::level_of(int a, int b) const {
  int l = num_levels() - 1;
  while (l > 0 && group_of(l, a) != group_of(l, b)) --l;
  return l;
}

std::string Topology::describe() const {
  std::string out;
  if (grid_)
    out = std::string(grid_->wraps ? "torus" : "mesh") + " of " + text(grid_->rows) + " x " +
          text(grid_->columns);
  for (int l = 1; l < num_levels(); ++l) {
    out += (out.empty() ? "" : ", ") +
           describe_level(noun(level(l).scope), members_[static_cast<std::size_t>(l)]);
  }
  return out.empty() ? counted(world_, "rank") + (world_ == 1 ? "" : ", all alike") : out;
}

}  // namespace weft::schedule
