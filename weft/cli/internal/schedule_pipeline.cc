#include "weft/cli/internal/schedule_pipeline.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json/json.h"
#include "weft/schedule/pipeline/messages.h"
#include "weft/schedule/pipeline/pictures/pictures.h"
#include "weft/schedule/pipeline/play.h"

namespace weft::cli::internal {
namespace {

namespace pipeline = schedule::pipeline;

// Whether the command has options of collectives or of gossip.
bool asks_for_others(const ScheduleCommand& command) {
  const ScheduleChoice& c = command.choice;
  const bool placed =
      !c.hosts.empty() || !c.grid.empty() || !c.topology.empty() || !c.across.empty();
  return placed || c.ranks || c.chunk_bytes != 0 || c.radix || c.root != 0 ||
         c.collective != ScheduleChoice().collective || command.count != 0 || command.graph ||
         command.seed;
}

pipeline::Request request_of(const ScheduleCommand& command) {
  const PipelineChoice& c = command.pipeline;
  pipeline::Request q{.algorithm = pipeline::parse_algorithm(command.algorithm)};
  const bool several = q.algorithm == pipeline::Algorithm::kInterleaved ||
                       q.algorithm == pipeline::Algorithm::kZeroBubbleV;
  q.ranks = c.stages.value_or(4);
  q.micro_batches = c.micro_batches.value_or(8);
  q.virtual_stages = c.virtual_stages.value_or(several ? 2 : 1);
  WEFT_REQUIRE(c.costs.empty() || c.costs.size() == 3 || c.costs.size() == 4,
               "--costs has " + std::to_string(c.costs.size()) +
                   " numbers; give 3, or 4 with the time of a message: 1,1,1,0");
  if (!c.costs.empty())
    q.costs = {c.costs[0], c.costs[1], c.costs[2], c.costs.size() > 3 ? c.costs[3] : 0};
  WEFT_REQUIRE(!c.memory || *c.memory > 0, "--memory " + std::to_string(c.memory.value_or(0)) +
                                               "; a rank holds at least 1 micro-batch");
  q.memory = c.memory.value_or(0);
  return q;
}

// Prints a line for the schedule, then one for each action and message of each rank, in order.
void print_json(const pipeline::Request& q) {
  const pipeline::Schedule schedule = make(q);
  const pipeline::Timing timing = play(schedule, q.costs);
  std::cout << json_line({{"schedule", to_string(q.algorithm)},
                          {"ranks", q.ranks},
                          {"micro_batches", q.micro_batches},
                          {"virtual_stages", q.virtual_stages},
                          {"makespan", timing.makespan},
                          {"idle_share", timing.idle_share},
                          {"iteration", timing.iteration},
                          {"bubble", timing.bubble},
                          {"messages", traffic(schedule).total}})
            << '\n';
  const auto lists = steps(schedule);
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    std::size_t computed = 0;
    for (const pipeline::Step& step : lists[rank]) {
      const bool computes = step.kind == pipeline::Kind::kCompute;
      const char* kind = computes                             ? to_string(step.action.work)
                         : step.kind == pipeline::Kind::kSend ? "send"
                                                              : "receive";
      nlohmann::ordered_json line = {{"rank", rank},
                                     {"action", kind},
                                     {"micro_batch", step.action.micro_batch},
                                     {"stage", step.action.stage}};
      if (computes) {
        const pipeline::Span& span = timing.spans[rank][computed++];
        line["begin"] = span.begin;
        line["end"] = span.end;
      } else {
        line["what"] = step.action.work == pipeline::Work::kForward ? "activations" : "gradient";
        line["peer"] = step.peer;
      }
      std::cout << json_line(line) << '\n';
    }
  }
}

}  // namespace

void write_picture(const std::string& path, const std::string& svg) {
  write_file_atomic(path, svg);
  std::cerr << "written to " << path << '\n';
}

std::vector<std::string> pipeline_names() {
  std::vector<std::string> names;
  for (const auto algorithm : pipeline::algorithms()) names.emplace_back(to_string(algorithm));
  return names;
}

bool is_pipeline(const std::string& name) {
  const auto names = pipeline_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool asks_for_pipeline(const ScheduleCommand& command) {
  const PipelineChoice& c = command.pipeline;
  return c.stages || c.micro_batches || c.virtual_stages || !c.costs.empty() || c.memory;
}

int show_pipeline(const ScheduleCommand& command) {
  WEFT_REQUIRE(!asks_for_others(command),
               command.algorithm +
                   " is a pipeline schedule; it has --stages, --micro-batches, --virtual, --costs "
                   "and --memory, and nothing of a collective");
  const pipeline::Request request = request_of(command);
  if (!command.svg.empty()) write_picture(command.svg, render_svg(request));
  if (command.json) {
    print_json(request);
  } else if (command.svg.empty()) {
    std::cout << render_text(request);
  }
  return 0;
}

void list_pipelines(bool json) {
  for (const auto algorithm : pipeline::algorithms()) {
    const std::string name = to_string(algorithm);
    if (json) {
      std::cout << json_line({{"algorithm", name},
                              {"collectives", nlohmann::ordered_json::array()},
                              {"pipeline", true}})
                << '\n';
    } else {
      std::cout << name << std::string(22 - std::min<std::size_t>(21, name.size()), ' ')
                << "pipeline; --stages, --micro-batches, --virtual, --costs\n";
    }
  }
}

}  // namespace weft::cli::internal
