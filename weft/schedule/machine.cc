// Files of Linux, below /sys. The first line of each is read:
//
//   devices/system/cpu/online                  processors
//   devices/system/cpu/cpuN/topology/          physical_package_id, core_id
//   devices/system/cpu/cpuN/cache/indexK/      level, type, size, shared_cpu_list
//   devices/system/node/nodeN/                 cpulist, meminfo
//   class/net/NAME/                            type, speed, operstate
//
// Virtual machines and containers leave out many of them. A file that is missing or has no number
// gives no value or a default, never an error.
//
// Numbers are not unique by themselves: core_id repeats in each socket, and sockets and caches
// repeat on each host. So cores are pairs of socket and core, and ranks are grouped from the
// outside in.
#include "weft/schedule/machine.h"
#include "weft/base/text/numbers.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

namespace weft::schedule {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<std::int64_t> number_of(const fs::path& path) {
  std::istringstream in(line_of(path));
  std::int64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

// "512K", "32M".
std::int64_t size_of(const fs::path& path) {
  std::istringstream in(line_of(path));
  std::int64_t value = 0;
  char unit = 0;
  in >> value >> unit;
  return unit == 'K' ? value << 10 : unit == 'M' ? value << 20 : unit == 'G' ? value << 30 : value;
}

// Numbers of the entries prefix0, prefix1, … of a folder.
std::vector<int> numbered(const fs::path& folder, const std::string& prefix) {
  std::vector<int> found;
  std::error_code none;
  for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none)) {
    const std::string name = it->path().filename();
    if (name.rfind(prefix, 0) != 0) continue;
    if (const auto number = parse_number<int>(name.substr(prefix.size()))) found.push_back(*number);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void find_cores(Machine& machine, const fs::path& cpus) {
  std::set<std::pair<std::int64_t, std::int64_t>> cores;
  std::set<std::int64_t> sockets;
  for (const int processor : machine.processors) {
    const fs::path topology = cpus / ("cpu" + std::to_string(processor)) / "topology";
    const auto socket = number_of(topology / "physical_package_id");
    // Linux lists processors in ascending order, so each one extends the list. Gaps stay at -1.
    machine.socket_by_processor.resize(static_cast<std::size_t>(processor) + 1, -1);
    machine.socket_by_processor.back() = static_cast<int>(socket.value_or(-1));
    sockets.insert(socket.value_or(0));
    // A processor without a core_id counts as a core of its own.
    cores.insert({socket.value_or(0), number_of(topology / "core_id").value_or(processor)});
  }
  machine.cores = static_cast<int>(cores.size());
  machine.sockets = static_cast<int>(sockets.size());
}

void find_caches(Machine& machine, const fs::path& cpus) {
  std::map<std::pair<int, int>, Cache> caches;  // by level and first processor
  for (const int processor : machine.processors) {
    const fs::path folder = cpus / ("cpu" + std::to_string(processor)) / "cache";
    for (const int index : numbered(folder, "index")) {
      const fs::path at = folder / ("index" + std::to_string(index));
      Cache cache{static_cast<int>(number_of(at / "level").value_or(0)), size_of(at / "size"),
                  parse_processors(line_of(at / "shared_cpu_list"))};
      if (line_of(at / "type") == "Instruction" || cache.level == 0 || cache.processors.empty())
        continue;
      // Each processor that shares a cache lists it. The first listing stays.
      caches.emplace(std::pair(cache.level, cache.processors.front()), cache);
    }
  }
  for (auto& [key, cache] : caches) machine.caches.push_back(std::move(cache));
}

void find_numa_nodes(Machine& machine, const fs::path& nodes) {
  for (const int id : numbered(nodes, "node")) {
    const fs::path at = nodes / ("node" + std::to_string(id));
    NumaNode node{id, 0, parse_processors(line_of(at / "cpulist"))};
    std::istringstream words(line_of(at / "meminfo"));  // "Node 0 MemTotal:  16384 kB"
    std::string word;
    while (words >> word && word != "MemTotal:") {
    }
    words >> node.bytes;
    node.bytes <<= 10;
    machine.numa_nodes.push_back(std::move(node));
  }
}

void find_interfaces(Machine& machine, const fs::path& net) {
  constexpr std::int64_t kLoopback = 772;  // ARPHRD_LOOPBACK
  std::error_code none;
  for (fs::directory_iterator it(net, none), end; !none && it != end; it.increment(none)) {
    if (number_of(it->path() / "type").value_or(kLoopback) == kLoopback) continue;
    // Of a virtual interface, or of one that is down: -1, or an error on reading.
    const auto megabits = number_of(it->path() / "speed").value_or(-1);
    Interface found{it->path().filename(), line_of(it->path() / "operstate") == "up", std::nullopt};
    if (megabits > 0) found.bandwidth = static_cast<double>(megabits) * 1e6 / 8;
    machine.interfaces.push_back(std::move(found));
  }
  std::sort(machine.interfaces.begin(), machine.interfaces.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

bool has_all(const std::vector<int>& whole, const std::vector<int>& part) {
  return !part.empty() && std::all_of(part.begin(), part.end(), [&](int one) {
    return std::find(whole.begin(), whole.end(), one) != whole.end();
  });
}

// Group of each rank: ranks with the same outer group and the same part. Groups are numbered in the
// order of their first ranks.
std::vector<int> groups_of(const std::vector<int>& outer, const std::vector<std::string>& parts) {
  std::map<std::pair<int, std::string>, int> numbers;
  std::vector<int> groups;
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    groups.push_back(
        numbers.emplace(std::pair(outer[rank], parts[rank]), static_cast<int>(numbers.size()))
            .first->second);
  return groups;
}

}  // namespace

std::vector<int> parse_processors(std::string_view list) {
  constexpr int kMost = 1 << 16;
  std::vector<int> all;
  const char *at = list.data(), *end = at + list.size();
  while (at != end) {
    int first = 0, last = 0;
    const auto begin = std::from_chars(at, end, first);
    if (begin.ec != std::errc() || first < 0) break;
    last = first;
    at = begin.ptr;
    if (at != end && *at == '-') {
      const auto to = std::from_chars(at + 1, end, last);
      if (to.ec != std::errc() || last < first || last > kMost) break;
      at = to.ptr;
    }
    for (int one = first; one <= last; ++one) all.push_back(one);
    if (at == end || *at != ',') break;
    ++at;
  }
  return all;
}

std::vector<int> usable_processors() {
  std::vector<int> processors;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return processors;
  for (int one = 0; one < CPU_SETSIZE; ++one) {
    if (CPU_ISSET(one, &set)) processors.push_back(one);
  }
  return processors;
}

Machine find_machine(const std::string& sys) {
  const fs::path root(sys), cpus = root / "devices/system/cpu";
  Machine machine;
  machine.processors = parse_processors(line_of(cpus / "online"));
  find_cores(machine, cpus);
  find_caches(machine, cpus);
  find_numa_nodes(machine, root / "devices/system/node");
  find_interfaces(machine, root / "class/net");
  return machine;
}

std::optional<int> Machine::socket_of(const std::vector<int>& some) const {
  std::set<int> sockets;
  for (const int one : some) {
    const bool told = one >= 0 && static_cast<std::size_t>(one) < socket_by_processor.size();
    sockets.insert(told ? socket_by_processor[static_cast<std::size_t>(one)] : -1);
  }
  return sockets.size() == 1 && *sockets.begin() >= 0 ? std::optional(*sockets.begin())
                                                      : std::nullopt;
}

std::optional<int> Machine::numa_node_of(const std::vector<int>& some) const {
  for (const auto& node : numa_nodes) {
    if (has_all(node.processors, some)) return node.id;
  }
  return std::nullopt;
}

std::optional<int> Machine::cache_of(const std::vector<int>& some) const {
  const int last = caches.empty() ? 0 : caches.back().level;
  for (const auto& cache : caches) {
    if (cache.level == last && has_all(cache.processors, some)) return cache.processors.front();
  }
  return std::nullopt;
}

Topology topology_of(const std::vector<Place>& places) {
  const int world = static_cast<int>(places.size());
  const std::pair<Scope, std::function<std::string(const Place&)>> scopes[] = {
      {Scope::kHost, [](const Place& place) { return place.host; }},
      {Scope::kSocket, [](const Place& place) { return std::to_string(place.socket); }},
      {Scope::kNuma, [](const Place& place) { return std::to_string(place.numa); }},
      {Scope::kCache, [](const Place& place) { return std::to_string(place.cache); }},
  };
  std::vector<Level> levels;
  std::vector<int> outer(places.size(), 0);
  for (const auto& [scope, part_of] : scopes) {
    std::vector<std::string> parts;
    for (const auto& place : places) parts.push_back(part_of(place));
    auto groups = groups_of(outer, parts);
    const int count = groups.empty() ? 0 : 1 + *std::max_element(groups.begin(), groups.end());
    // The outermost level joins all ranks: over a cluster or, if there is one host, inside it.
    if (scope == Scope::kHost)
      levels.push_back({count == 1 ? scope : Scope::kCluster,
                        default_link(count == 1 ? scope : Scope::kCluster),
                        {}});
    // A level that divides nothing more, or leaves each rank alone, says nothing about the ranks.
    if (groups == outer || count == world) continue;
    levels.push_back({scope, default_link(scope), groups});
    outer = std::move(groups);
  }
  return {world, std::move(levels)};
}

}  // namespace weft::schedule
