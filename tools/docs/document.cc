#include "tools/docs/document.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "tools/docs/internal/race.h"
#include "tools/docs/internal/winners_picture.h"
#include "tools/docs/internal/words.h"
#include "weft/schedule/gossip.h"
#include "weft/schedule/pictures/pictures.h"
#include "weft/schedule/schedule.h"

namespace weft::docs {
namespace {

using internal::SharedTopology;
using schedule::Algorithm;
using schedule::Collective;
using schedule::Cost;
using schedule::Gossip;
using schedule::Graph;
using schedule::Grid;
using schedule::Request;
using schedule::Topology;

SharedTopology share(Topology topology) {
  return std::make_shared<const Topology>(std::move(topology));
}

bool is_mapped(Collective c) { return c == Collective::kAllReduce || c == Collective::kBroadcast; }

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}
std::string picture_of(Algorithm algorithm) {
  return "pictures/schedule-" + with_dashes(to_string(algorithm)) + ".svg";
}
std::string picture_of(Graph graph) {
  return "pictures/gossip-" + with_dashes(to_string(graph)) + ".svg";
}
std::string map_of(Collective collective) {
  return "pictures/fastest-" + with_dashes(to_string(collective)) + ".svg";
}
std::string image(const std::string& text, const std::string& path) {
  return "![" + text + "](" + path + ")\n";
}

// --- The fastest algorithm ---

std::string fastest_svg(Collective collective) {
  internal::Panel flat{"One rank a host, 10 Gbit/s Ethernet between them", {}};
  for (int world = 2; world <= 128; world *= 2)
    flat.rows.push_back({std::to_string(world) + " ranks", share(Topology::flat(world))});
  internal::Panel hosts{"Hosts of 8 ranks that share memory, and one 10 Gbit/s network card each",
                        {}};
  for (int count = 1; count <= 16; count *= 2) {
    const std::string name = std::to_string(count) + " x 8 ranks";
    hosts.rows.push_back(
        {name, share(Topology::hosts(std::vector<int>(static_cast<std::size_t>(count), 8)))});
  }
  return internal::winners_svg(collective, {flat, hosts});
}

struct System {
  const char* name;
  SharedTopology topology;
};

std::vector<System> systems() {
  return {{"16 hosts", share(Topology::flat(16))},
          {"4 hosts of 8", share(Topology::hosts({8, 8, 8, 8}))},
          {"hosts of 8, 8 and 4", share(Topology::hosts({8, 8, 4}))}};
}

constexpr std::int64_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20};

// The table of the fastest algorithms, and for each algorithm the cases in which it is the fastest.
struct Race {
  std::string table;
  std::map<Algorithm, std::string> won;
};

void run_race(Collective collective, const System& system, Race& race) {
  race.table += std::string("| ") + to_string(collective) + " | " + system.name + " |";
  std::map<Algorithm, std::string> sizes;
  for (const std::int64_t size : kSizes) {
    const internal::Winner win = internal::winner(collective, system.topology, size);
    race.table += " " + win.name + "<br>" + internal::duration(win.seconds) + " |";
    sizes[win.algorithm] += (sizes[win.algorithm].empty() ? "" : ", ") + internal::byte_size(size);
  }
  race.table += "\n";
  for (const auto& [algorithm, names] : sizes) {
    race.won[algorithm] +=
        std::string("- ") + to_string(collective) + " over " + system.name + ": " + names + "\n";
  }
}

Race race() {
  Race race;
  race.table = "| collective | system |";
  for (const std::int64_t size : kSizes) race.table += " " + internal::byte_size(size) + " |";
  race.table += "\n| --- | --- |";
  for (std::size_t i = 0; i < std::size(kSizes); ++i) race.table += " --- |";
  race.table += "\n";
  for (const Collective collective : schedule::collectives()) {
    if (collective == Collective::kBarrier) continue;
    for (const System& system : systems()) run_race(collective, system, race);
  }
  return race;
}

// --- One algorithm ---

// The hosts of a world in the examples of the hierarchical algorithm.
SharedTopology hosts_of(int world) {
  return share(Topology::hosts(world == 8    ? std::vector{4, 4}
                               : world == 13 ? std::vector{4, 4, 5}
                                             : std::vector<int>(8, 8)));
}

constexpr int kWorlds[] = {8, 13, 64};

std::string costs(const internal::Words& words) {
  std::string text = std::string("| collective | rounds | ") +
                     (words.algorithm == Algorithm::kDirect ? "read" : "sent") +
                     " by the busiest rank |";
  for (const int world : kWorlds) text += " W = " + std::to_string(world) + ": rounds | elements |";
  text += "\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const internal::Formula& formula : words.formulas) {
    text += std::string("| ") + to_string(formula.collective) + " | " + formula.rounds + " | " +
            formula.sent + " |";
    for (const int world : kWorlds) {
      Request q{.collective = formula.collective, .algorithm = words.algorithm, .world = world};
      q.count = formula.collective == Collective::kBarrier ? 0 : 840;
      if (words.algorithm == Algorithm::kHierarchical) q.topology = hosts_of(world);
      const Cost counted = cost(q);
      text += " " + std::to_string(counted.rounds) + " | " + std::to_string(counted.sent) + " |";
    }
    text += "\n";
  }
  return text;
}

// A table of the traffic between and inside four hosts of eight ranks, for arrays of 3200 elements
// or blocks of 100.
std::string crossing(Algorithm algorithm) {
  if (algorithm == Algorithm::kDirect) return "";
  const SharedTopology topology = share(Topology::hosts({8, 8, 8, 8}));
  std::string rows;
  for (const Collective collective : schedule::collectives()) {
    if (!supports(algorithm, collective) || collective == Collective::kBarrier) continue;
    Request q{.collective = collective, .algorithm = algorithm, .world = 32, .topology = topology};
    q.count = is_mapped(collective) || collective == Collective::kReduce ? 3200 : 100;
    const auto levels = traffic(q);
    rows += std::string("| ") + to_string(collective) + " | " + std::to_string(levels[0].total) +
            " | " + std::to_string(levels[0].busiest) + " | " + std::to_string(levels[1].total) +
            " |\n";
  }
  return "Elements sent over 4 hosts of 8 ranks, for 3200 elements in all:\n\n| collective | "
         "between hosts | out of "
         "the busiest host | inside hosts |\n"
         "| --- | --- | --- | --- |\n" +
         rows + "\n";
}

Request pictured(Algorithm algorithm) {
  Request q{.algorithm = algorithm, .world = 8};
  for (const Collective collective : schedule::collectives()) {
    if (!supports(algorithm, collective)) continue;
    q.collective = collective;
    if (is_mapped(collective)) break;
  }
  if (algorithm == Algorithm::kTorus) {
    q.world = 6;
    q.topology = share(Topology::grid(Grid{2, 3}));
  }
  const bool hosts = algorithm == Algorithm::kHierarchical || algorithm == Algorithm::kChain;
  if (hosts) q.topology = share(Topology::hosts({4, 4}));
  return q;
}

std::string section(Algorithm algorithm, const Race& results) {
  const internal::Words& words = internal::words_of(algorithm);
  std::string text = std::string("\n## ") + to_string(algorithm) + "\n\n" + words.what +
                     "\n\nSource: " + words.source + ".\n\n";
  text +=
      image(std::string("Space-time picture of ") + to_string(algorithm), picture_of(algorithm)) +
      "\n" + costs(words) + "\n";
  text += crossing(algorithm);
  if (algorithm == Algorithm::kDirect)
    return text + "Ranks that share memory use it instead of all other algorithms.\n";
  const auto won = results.won.find(algorithm);
  if (won == results.won.end())
    return text + "It is nowhere the fastest in the table above. " + words.otherwise + "\n";
  return text + "It is the fastest in the table above for:\n\n" + won->second;
}

// --- Gossip ---

std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string gossip_table() {
  std::string text =
      "| graph | messages a round | mixing rate | W = 8: rate | rounds | W = 16: rate | rounds | "
      "W = 64: rate | rounds | W = 256: rate | rounds |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const internal::GossipWords& words : internal::gossip_words()) {
    text += std::string("| ") + to_string(words.graph) + " | " + words.messages + " | " +
            words.rate + " |";
    for (const int world : {8, 16, 64, 256}) {
      const Gossip gossip{words.graph, world};
      text += " " + decimal(mixing_rate(gossip)) + " | " +
              std::to_string(rounds_to_thousandth(gossip)) + " |";
    }
    text += "\n";
  }
  return text;
}

std::string gossip_section() {
  std::string text = std::string(internal::kGossip) + gossip_table();
  for (const internal::GossipWords& words : internal::gossip_words()) {
    text += std::string("\n### ") + to_string(words.graph) + "\n\n" + words.what + "\n\n" +
            image(std::string("Neighbors of each rank: ") + to_string(words.graph),
                  picture_of(words.graph));
  }
  return text;
}

std::string page() {
  const Race results = race();
  std::string text = internal::kIntroduction;
  for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast}) {
    text += image(std::string("Maps of the fastest ") + to_string(collective), map_of(collective)) +
            "\n";
  }
  text += internal::kTable + results.table;
  for (const Algorithm algorithm : schedule::algorithms()) text += section(algorithm, results);
  return text + gossip_section();
}

}  // namespace

std::vector<File> algorithms() {
  std::vector<File> files = {{"algorithms.md", page()}};
  for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast}) {
    files.push_back({map_of(collective), fastest_svg(collective)});
  }
  for (const Algorithm algorithm : schedule::algorithms())
    files.push_back({picture_of(algorithm), render_svg(pictured(algorithm))});
  for (const Graph graph : schedule::graphs()) {
    files.push_back({picture_of(graph), render_svg(Gossip{graph, graph == Graph::kGrid ? 16 : 8})});
  }
  return files;
}

}  // namespace weft::docs
