// Reads and writes topologies as TOML. The schema is fixed: one table for each scope.
#include <algorithm>
#include <iomanip>
#include <limits>
#include <locale>
#include <sstream>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/schedule/topology.h"

namespace weft::schedule {
namespace {

constexpr Scope kScopes[] = {Scope::kCluster, Scope::kRack, Scope::kHost,
                             Scope::kSocket,  Scope::kNuma, Scope::kCache};
constexpr const char* kSizes = ".sizes";
constexpr const char* kGroupOf = ".group_of";
constexpr const char* kLatency = ".latency";
constexpr const char* kBandwidth = ".bandwidth";
constexpr const char* kReduction = ".reduction";

std::string operator+(Scope scope, const char* key) { return std::string(to_string(scope)) + key; }

Schema schema() {
  constexpr double kMost = Topology::kMaxWorld;
  Schema schema{{"world", 0, "ranks, where no level says it", {.min = 0, .max = kMost}},
                {"grid.rows", 0, "rows of a torus or mesh", {.min = 0, .max = kMost}},
                {"grid.columns", 0, "its columns", {.min = 0, .max = kMost}},
                {"grid.wraps", true, "rows and columns are rings"}};
  for (const Scope scope : kScopes) {
    const Link link = default_link(scope);
    schema.add({scope + kSizes,
                std::vector<std::int64_t>(),
                "ranks of each group, consecutive",
                {.min = 1, .max = kMost}});
    schema.add({scope + kGroupOf,
                std::vector<std::int64_t>(),
                "each rank's group",
                {.min = 0, .max = kMost}});
    schema.add({scope + kLatency, link.latency, "seconds", {.min = 0}});
    schema.add({scope + kBandwidth, link.bandwidth, "bytes/s", {.min = 1}});
    schema.add({scope + kReduction, link.reduction, "bytes/s of the array added up", {.min = 1}});
  }
  return schema;
}

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw Error(Errc::kBadConfig, where + ": " + what);
}

// Group of each rank, as the level's table gives it. Empty if the table names no ranks.
std::vector<int> groups(const Config& config, Scope scope) {
  const auto& sizes = config.get_ints(scope + kSizes);
  const auto& group_of = config.get_ints(scope + kGroupOf);
  if (!sizes.empty() && !group_of.empty()) {
    fail(config.origin(scope + kGroupOf),
         scope + kSizes + " and " + (scope + kGroupOf) + " say the same; give one of them");
  }
  std::vector<int> result(group_of.begin(), group_of.end());
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    if (result.size() + static_cast<std::size_t>(sizes[g]) > Topology::kMaxWorld) {
      fail(config.origin(scope + kSizes),
           scope + kSizes + " come to more than " + std::to_string(Topology::kMaxWorld) + " ranks");
    }
    result.insert(result.end(), static_cast<std::size_t>(sizes[g]), static_cast<int>(g));
  }
  return result;
}

std::optional<Grid> grid_of(const Config& config) {
  const Grid grid{static_cast<int>(config.get_int("grid.rows")),
                  static_cast<int>(config.get_int("grid.columns")), config.get_bool("grid.wraps")};
  if (grid.rows == 0 && grid.columns == 0) {
    if (config.origin("grid.wraps") != "default")
      fail(config.origin("grid.wraps"), "grid.wraps without grid.rows and grid.columns");
    return std::nullopt;
  }
  if (grid.rows == 0) fail(config.origin("grid.columns"), "grid.columns without grid.rows");
  if (grid.columns == 0) fail(config.origin("grid.rows"), "grid.rows without grid.columns");
  return grid;
}

bool mentioned(const Config& config, Scope scope) {
  const auto said = [&](const char* key) { return config.origin(scope + key) != "default"; };
  return said(kLatency) || said(kBandwidth) || said(kReduction) || said(kSizes) || said(kGroupOf);
}

std::vector<Level> levels_of(const Config& config, const std::string& source) {
  std::vector<Level> levels;
  for (const Scope scope : kScopes) {
    Level level{scope,
                {config.get_double(scope + kLatency), config.get_double(scope + kBandwidth),
                 config.get_double(scope + kReduction)},
                groups(config, scope)};
    const bool splits = !level.group_of.empty();
    // The outermost level is the whole world and needs no list of its ranks. It is the cluster,
    // unless the outermost level in the file has all ranks in one group.
    if (splits || mentioned(config, scope)) levels.push_back(std::move(level));
  }
  const auto whole = [](const Level& level) {
    return std::all_of(level.group_of.begin(), level.group_of.end(),
                       [&](int group) { return group == level.group_of[0]; });
  };
  if (levels.empty() || !whole(levels[0])) {
    if (!levels.empty() && levels[0].scope == Scope::kCluster)
      fail(source, "there is one cluster: [cluster] has one group");
    levels.insert(levels.begin(), {Scope::kCluster, default_link(Scope::kCluster), {}});
  }
  for (std::size_t l = 1; l < levels.size(); ++l) {
    if (levels[l].group_of.empty()) {
      const std::string name = to_string(levels[l].scope);
      fail(source, "[" + name + "] has a link but no ranks: give " + name + ".sizes or " + name +
                       ".group_of");
    }
  }
  return levels;
}

int world_of(const Config& config, const std::vector<Level>& levels,
             const std::optional<Grid>& grid, const std::string& source) {
  int world = static_cast<int>(config.get_int("world"));
  for (const Level& level : levels) {
    if (world == 0) world = static_cast<int>(level.group_of.size());
  }
  if (world == 0 && grid) {
    const std::int64_t places = static_cast<std::int64_t>(grid->rows) * grid->columns;
    if (places > Topology::kMaxWorld)
      fail(config.origin("grid.rows"),
           "a grid of more than " + std::to_string(Topology::kMaxWorld) + " ranks");
    world = static_cast<int>(places);
  }
  if (world == 0)
    fail(source, "no ranks: give the sizes of a level, as in [host] sizes = [4, 4], or world");
  return world;
}

template <typename Values, typename Number>
std::string list(const Values& values, Number number) {
  std::string text;
  for (const auto& value : values)
    text += (text.empty() ? "[" : ", ") + std::to_string(number(value));
  return text + "]\n";
}

}  // namespace

Topology Topology::parse(std::string_view toml, const std::string& source) {
  const Config config = Config::parse(toml, source, schema());
  const auto grid = grid_of(config);
  auto levels = levels_of(config, source);
  const int world = world_of(config, levels, grid, source);
  try {
    return Topology(world, std::move(levels), grid);
  } catch (const Error& error) {
    fail(source, error.message());
  }
}

Topology Topology::load(const std::string& path) { return parse(read_file(path, 64 << 10), path); }

std::string Topology::to_toml() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::setprecision(std::numeric_limits<double>::max_digits10) << "world = " << world_
      << '\n';
  if (grid_) {
    out << "\n[grid]\nrows = " << grid_->rows << "\ncolumns = " << grid_->columns
        << "\nwraps = " << (grid_->wraps ? "true" : "false") << '\n';
  }
  for (int l = 0; l < num_levels(); ++l) {
    const Level& level = this->level(l);
    out << "\n[" << to_string(level.scope) << "]\n";
    const auto& groups = members_[static_cast<std::size_t>(l)];
    if (std::is_sorted(level.group_of.begin(), level.group_of.end())) {
      out << "sizes = " << list(groups, [](const auto& group) { return group.size(); });
    } else {
      out << "group_of = " << list(level.group_of, [](int group) { return group; });
    }
    out << "latency = " << level.link.latency << "\nbandwidth = " << level.link.bandwidth
        << "\nreduction = " << level.link.reduction << '\n';
  }
  return out.str();
}

}  // namespace weft::schedule
