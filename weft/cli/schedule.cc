#include "weft/schedule/schedule.h"

#include <iostream>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/cli/commands.h"
#include "weft/schedule/show.h"

namespace weft::cli {
namespace {

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
  return buffer == schedule::Buffer::kInput ? "input" : buffer == schedule::Buffer::kOutput ? "output" : "scratch";
}

void print_json(const schedule::Request& request) {
  for (int rank = 0; rank < request.world; ++rank) {
    auto own = request;
    own.rank = rank;
    for (const auto& step : schedule::make(own).steps) {
      std::cout << "{\"rank\": " << rank << ", \"round\": " << step.round << ", \"action\": " << json_quote(name_of(step.action))
                << ", \"peer\": " << step.peer << ", \"from\": " << json_quote(name_of(step.from)) << ", \"src\": " << step.src
                << ", \"to\": " << json_quote(name_of(step.to)) << ", \"dst\": " << step.dst << ", \"count\": " << step.count << "}\n";
    }
  }
}

}  // namespace

int schedule_show(const ScheduleCommand& command) {
  schedule::Request request;
  request.algorithm = schedule::parse_algorithm(command.algorithm);
  request.collective = schedule::parse_collective(command.collective);
  request.world = command.ranks;
  request.count = command.count;
  request.root = command.root;
  WEFT_REQUIRE(schedule::supports(request.algorithm, request.collective),
               command.algorithm + " cannot do " + command.collective + "; see weft schedule list");
  if (!command.svg.empty()) {
    write_file_atomic(command.svg, schedule::render_svg(request));
    std::cerr << "written to " << command.svg << '\n';
  }
  if (command.json) {
    if (request.count == 0 && request.collective != schedule::Collective::kBarrier) request.count = command.ranks;
    print_json(request);
  } else if (command.svg.empty()) {
    std::cout << schedule::render_text(request);
  }
  return 0;
}

int schedule_list(bool json) {
  for (const auto algorithm : schedule::algorithms()) {
    std::string names;
    for (const auto collective : schedule::collectives()) {
      if (!schedule::supports(algorithm, collective)) continue;
      const std::string name = schedule::to_string(collective);
      names += json ? (names.empty() ? "" : ", ") + json_quote(name) : (names.empty() ? "" : " ") + name;
    }
    const std::string name = schedule::to_string(algorithm);
    if (json) {
      std::cout << "{\"algorithm\": " << json_quote(name) << ", \"collectives\": [" << names << "]}\n";
    } else {
      std::cout << name << std::string(22 - std::min<std::size_t>(21, name.size()), ' ') << names << '\n';
    }
  }
  return 0;
}

}  // namespace weft::cli
