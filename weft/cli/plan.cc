// `weft plan simulate`: predicts the time and traffic of collectives on a topology of any size,
// without running them.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/schedule_request.h"
#include "weft/cli/internal/table.h"
#include "weft/plan/collectives/simulate.h"
#include "weft/schedule/pictures/pictures.h"

namespace weft::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Answer {
  schedule::Request request;
  std::uint64_t bytes = 0;  // requested size
  plan::Simulation simulation;
  double took = 0;  // seconds that the simulation took
};

std::string scaled(double value, const char* const* units, int count, double step) {
  int unit = 0;
  for (; unit + 1 < count && value >= 0.9995 * step; ++unit) value /= step;
  return formatted("%.3g %s", value, units[unit]);
}
std::string duration(double seconds) {
  constexpr const char* kUnits[] = {"us", "ms", "s"};
  return seconds >= 0.9995 ? scaled(seconds, kUnits + 2, 1, 1)
                           : scaled(seconds * 1e6, kUnits, 3, 1e3);
}
std::string byte_size(double bytes) {
  constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB", "PB"};
  return scaled(bytes, kUnits, 6, 1e3);
}

bool has_blocks(schedule::Collective c) {
  using enum schedule::Collective;
  return c != kAllReduce && c != kBroadcast && c != kReduce;
}

Answer answer(const SimulateCommand& command, const std::string& name, std::uint64_t bytes) {
  Answer result{.request = internal::request_of(command.choice, schedule::parse_algorithm(name)),
                .bytes = bytes,
                .simulation = {}};
  schedule::Request& q = result.request;
  WEFT_REQUIRE(q.algorithm != schedule::Algorithm::kDirect,
               "direct sends no messages that could be simulated; name another algorithm");
  WEFT_REQUIRE(q.collective == schedule::Collective::kBarrier || bytes >= internal::kElementBytes,
               "--size: one f32 element is 4 bytes");
  const std::int64_t blocks = has_blocks(q.collective) ? q.world : 1;
  q.count = static_cast<std::int64_t>(bytes) / internal::kElementBytes / blocks;
  if (q.collective == schedule::Collective::kBarrier) q.count = 0;
  const auto start = std::chrono::steady_clock::now();
  result.simulation = plan::simulate(q, internal::kElementBytes);
  result.took = seconds_since(start);
  return result;
}

schedule::Topology topology_of(const schedule::Request& q) {
  return q.topology ? *q.topology : schedule::Topology::flat(q.world);
}

// Name of a level's links; "between ranks" if the topology has one level.
std::string link_of(const schedule::Topology& topology, int level) {
  return topology.num_levels() == 1 ? "between ranks" : schedule::link_name(topology, level);
}

void print_json(const Answer& a) {
  const schedule::Topology topology = topology_of(a.request);
  const plan::Simulation& s = a.simulation;
  Json levels = Json::array();
  for (int l = 0; l < topology.num_levels(); ++l) {
    const plan::LevelTraffic& traffic = s.levels[static_cast<std::size_t>(l)];
    levels.push_back({{"link", link_of(topology, l)},
                      {"messages", traffic.messages},
                      {"bytes", traffic.bytes},
                      {"busiest_bytes", traffic.busiest_port}});
  }
  std::cout << json_line({{"algorithm", to_string(a.request.algorithm)},
                          {"collective", to_string(a.request.collective)},
                          {"ranks", a.request.world},
                          {"topology", topology.describe()},
                          {"bytes", a.bytes},
                          {"count", s.count},
                          {"seconds", s.seconds},
                          {"rounds", s.rounds},
                          {"critical",
                           {{"latency", s.critical.latency},
                            {"wire", s.critical.wire},
                            {"waiting", s.critical.waiting},
                            {"reduction", s.critical.reduction}}},
                          {"levels", levels},
                          {"by_symmetry", s.by_symmetry},
                          {"simulated_in", a.took}})
            << '\n';
}

// Prints lines such as "between hosts 62.4 GB, 50 MB out of the busiest": all bytes of a level, and
// the bytes that the busiest host or rank sends.
void print_answers(const std::vector<Answer>& answers, std::uint64_t bytes) {
  const schedule::Topology topology = topology_of(answers[0].request);
  std::cout << '\n'
            << to_string(answers[0].request.collective) << " of "
            << byte_size(static_cast<double>(bytes)) << '\n';
  std::vector<std::vector<std::string>> rows = {
      {"algorithm", "time", "rounds", "latency", "wire", "waiting", "adding"}};
  for (int l = 0; l < topology.num_levels(); ++l) {
    rows[0].push_back(link_of(topology, l));
    rows[0].emplace_back(l + 1 == topology.num_levels()
                             ? "busiest rank"
                             : "busiest " + std::string(noun(topology.level(l + 1).scope)));
  }
  rows[0].emplace_back("simulated in");
  for (const Answer& a : answers) {
    if (a.bytes != bytes) continue;
    const plan::Simulation& s = a.simulation;
    auto& row = rows.emplace_back(std::vector<std::string>{
        to_string(a.request.algorithm), duration(s.seconds), std::to_string(s.rounds),
        duration(s.critical.latency), duration(s.critical.wire), duration(s.critical.waiting),
        duration(s.critical.reduction)});
    for (const auto& traffic : s.levels) {
      row.push_back(byte_size(traffic.bytes));
      row.push_back(byte_size(traffic.busiest_port));
    }
    row.push_back(duration(a.took));
  }
  print_table(rows);
}

}  // namespace

int plan_simulate(const SimulateCommand& command) {
  std::vector<Answer> answers;
  double took = 0;
  for (const std::uint64_t bytes : command.sizes) {
    for (const std::string& name : command.algorithms) {
      answers.push_back(answer(command, name, bytes));
      took += answers.back().took;
      if (command.json) print_json(answers.back());
    }
  }
  if (command.json) return 0;
  const schedule::Topology topology = topology_of(answers.at(0).request);
  std::cout << counted(topology.world(), "rank");
  if (topology.num_levels() > 1 || topology.grid()) std::cout << " (" << topology.describe() << ')';
  for (int l = 0; l < topology.num_levels(); ++l) {
    const schedule::Link& link = topology.level(l).link;
    std::cout << "; " << link_of(topology, l) << ' ' << duration(link.latency) << ", "
              << byte_size(link.bandwidth) << "/s";
  }
  std::cout << ". Latency, wire, waiting (for a port) and adding are those of the longest chain of "
               "messages.\n";
  for (const std::uint64_t bytes : command.sizes) print_answers(answers, bytes);
  std::cout << "\nsimulated in " << duration(took) << '\n';
  return 0;
}

}  // namespace weft::cli
