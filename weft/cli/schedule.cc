#include "weft/schedule/schedule.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/json/json.h"
#include "weft/base/text/words.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/schedule_pipeline.h"
#include "weft/cli/internal/schedule_request.h"
#include "weft/schedule/gossip.h"
#include "weft/schedule/pictures/pictures.h"

namespace weft::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(schedule::Action action) {
  using A = schedule::Action;
  switch (action) {
    case A::kSend: return "send";
    case A::kRecv: return "recv";
    case A::kRecvReduce: return "recv_reduce";
    case A::kCopy: return "copy";
    case A::kReduce: return "reduce";
    case A::kRead: return "read";
    case A::kReadReduce: return "read_reduce";
    case A::kMeet: return "meet";
  }
  return "unknown";
}

const char* name_of(schedule::Buffer buffer) {
  return buffer == schedule::Buffer::kInput    ? "input"
         : buffer == schedule::Buffer::kOutput ? "output"
                                               : "scratch";
}

void print_json(const schedule::Request& request) {
  for (int rank = 0; rank < request.world; ++rank) {
    auto own = request;
    own.rank = rank;
    for (const auto& step : schedule::make(own).steps) {
      std::cout << json_line({{"rank", rank},
                              {"round", step.round},
                              {"action", name_of(step.action)},
                              {"peer", step.peer},
                              {"from", name_of(step.from)},
                              {"src", step.src},
                              {"to", name_of(step.to)},
                              {"dst", step.dst},
                              {"count", step.count}})
                << '\n';
    }
  }
}

// Like parse_algorithm(), but also suggests gossip and pipelines for a mistyped name.
schedule::Algorithm parse_shown(const std::string& name) {
  std::vector<std::string> others = internal::pipeline_names();
  others.emplace_back("gossip");
  std::vector<std::string> all = others;
  for (const auto algorithm : schedule::algorithms()) all.emplace_back(to_string(algorithm));
  const auto near = nearest(name, all);
  const bool other = near && std::find(others.begin(), others.end(), *near) != others.end();
  WEFT_REQUIRE(!other,
               "no algorithm is called '" + name + "'; did you mean '" + near.value_or("") + "'?");
  return schedule::parse_algorithm(name);
}

// Prints a line for the graph, then one for each rank in each round, until the rounds repeat.
// Random matchings do not repeat; three rounds are shown.
void print_json(const schedule::Gossip& gossip) {
  std::cout << json_line({{"graph", to_string(gossip.graph)},
                          {"ranks", gossip.world},
                          {"mixing_rate", mixing_rate(gossip)},
                          {"spectral_gap", spectral_gap(gossip)},
                          {"rounds_to_thousandth", rounds_to_thousandth(gossip)}})
            << '\n';
  for (int round = 0; round < distinct_rounds(gossip); ++round) {
    for (int rank = 0; rank < gossip.world; ++rank) {
      const auto mixing = schedule::mixing(gossip, rank, round);
      Json hears = Json::array();
      for (const auto& neighbor : mixing.hears)
        hears.push_back({{"rank", neighbor.rank}, {"weight", neighbor.weight}});
      std::cout << json_line({{"round", round},
                              {"rank", rank},
                              {"self", mixing.self},
                              {"hears", hears},
                              {"sends_to", mixing.sends_to}})
                << '\n';
    }
  }
}

int show_gossip(const ScheduleCommand& command) {
  constexpr int kMaxRanks = 4096;  // computing their mixing rate takes a second
  const ScheduleChoice& choice = command.choice;
  const bool placed = !choice.hosts.empty() || !choice.grid.empty() || !choice.topology.empty() ||
                      !choice.across.empty();
  WEFT_REQUIRE(!placed && choice.chunk_bytes == 0 && !choice.radix && command.count == 0 &&
                   choice.collective == ScheduleChoice().collective,
               "gossip has --ranks, --graph and --seed, and nothing else of a collective");
  schedule::Gossip gossip{.graph = schedule::parse_graph(command.graph.value_or("exponential")),
                          .world = choice.ranks.value_or(8)};
  WEFT_REQUIRE(gossip.world <= kMaxRanks, "gossip of " + std::to_string(gossip.world) + " ranks; " +
                                              std::to_string(kMaxRanks) + " can be shown");
  WEFT_REQUIRE(!command.seed || gossip.graph == schedule::Graph::kRandomMatching,
               "--seed is for --graph random_matching");
  gossip.seed = command.seed.value_or(0);
  if (!command.svg.empty()) internal::write_picture(command.svg, schedule::render_svg(gossip));
  if (command.json) {
    print_json(gossip);
  } else if (command.svg.empty()) {
    std::cout << schedule::render_text(gossip);
  }
  return 0;
}

}  // namespace

int schedule_show(const ScheduleCommand& command) {
  if (internal::is_pipeline(command.algorithm)) return internal::show_pipeline(command);
  const bool is_gossip = command.algorithm == "gossip";
  const auto algorithm = is_gossip ? schedule::Algorithm::kRing : parse_shown(command.algorithm);
  WEFT_REQUIRE(
      !internal::asks_for_pipeline(command),
      "--stages, --micro-batches, --virtual, --costs and --memory are for pipelines, which " +
          command.algorithm + " is not");
  if (is_gossip) return show_gossip(command);
  WEFT_REQUIRE(!command.graph && !command.seed,
               "--graph and --seed are gossip's; " + command.algorithm + " has none");
  schedule::Request request = internal::request_of(command.choice, algorithm);
  request.count = command.count;
  if (!command.svg.empty()) internal::write_picture(command.svg, schedule::render_svg(request));
  if (command.json) {
    if (request.count == 0 && request.collective != schedule::Collective::kBarrier)
      request.count = request.world;
    print_json(request);
  } else if (command.svg.empty()) {
    std::cout << schedule::render_text(request);
  }
  return 0;
}

int schedule_list(bool json) {
  for (const auto algorithm : schedule::algorithms()) {
    std::vector<std::string> names;
    for (const auto collective : schedule::collectives())
      if (schedule::supports(algorithm, collective))
        names.emplace_back(schedule::to_string(collective));
    const std::string name = schedule::to_string(algorithm);
    if (json) {
      std::cout << json_line({{"algorithm", name}, {"collectives", names}}) << '\n';
    } else {
      std::cout << name << std::string(22 - std::min<std::size_t>(21, name.size()), ' ')
                << joined(names, " ") << '\n';
    }
  }
  internal::list_pipelines(json);
  if (json) {
    std::cout << json_line({{"algorithm", "gossip"}, {"collectives", Json::array()}}) << '\n';
  } else {
    std::vector<std::string> names;
    for (const auto graph : schedule::graphs()) names.emplace_back(to_string(graph));
    std::cout << "gossip" << std::string(16, ' ') << "averaging with neighbors; --graph "
              << joined(names) << '\n';
  }
  return 0;
}

}  // namespace weft::cli
