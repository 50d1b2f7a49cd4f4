// Generates docs/pipelines.md: texts and formulas, with figures and pictures from the schedules.
#include <algorithm>
#include <cstdio>

#include "tools/docs/document.h"
#include "tools/docs/internal/pipeline_words.h"
#include "weft/schedule/pipeline/messages.h"
#include "weft/schedule/pipeline/pictures/pictures.h"
#include "weft/schedule/pipeline/play.h"
#include "weft/schedule/pipeline/proof.h"

namespace weft::docs {
namespace {

using namespace schedule::pipeline;

std::string decimal(double value, const char* format = "%.4g") {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string picture_of(Algorithm algorithm) {
  std::string name = to_string(algorithm);
  std::replace(name.begin(), name.end(), '_', '-');
  return "pictures/pipeline-" + name + ".svg";
}

struct Case {
  int ranks, micro_batches;
};

// The schedules to show. Schedules that need several stages per rank are shown with several, and so
// is the breadth-first form of GPipe.
std::vector<Request> shown(const Case& c, const Costs& costs) {
  std::vector<Request> requests;
  for (const Algorithm algorithm : schedule::pipeline::algorithms()) {
    if (algorithm == Algorithm::kForwardOnly) continue;
    const bool several =
        algorithm == Algorithm::kInterleaved || algorithm == Algorithm::kZeroBubbleV;
    for (const int v : {1, 2, 4}) {
      if (several ? v == 1 || (v == 4 && algorithm == Algorithm::kZeroBubbleV)
                  : v > (algorithm == Algorithm::kGPipe ? 2 : 1))
        continue;
      const double d = v;  // the total work of a rank does not depend on the number of its stages
      requests.push_back({algorithm,
                          c.ranks,
                          c.micro_batches,
                          v,
                          {costs.forward / d, costs.backward_input / d, costs.backward_weight / d,
                           costs.message}});
    }
  }
  return requests;
}

std::string name_of(const Request& q) {
  return std::string(to_string(q.algorithm)) +
         (q.virtual_stages > 1 ? ", v = " + std::to_string(q.virtual_stages) : "");
}

double most_held_share(const Schedule& schedule) {
  int most = 0;
  for (int rank = 0; rank < schedule.request.ranks; ++rank)
    most = std::max(most, count_held(schedule, rank));
  return static_cast<double>(most) / schedule.request.virtual_stages;
}

// A table with a row for each schedule, and for each case the idle share, the bubble, the held
// micro-batches and the messages.
std::string side_by_side(const std::vector<Case>& cases, const Costs& costs) {
  std::string text = "| schedule |", rule = "| --- |";
  for (const Case& c : cases) {
    text += " p = " + std::to_string(c.ranks) + ", m = " + std::to_string(c.micro_batches) +
            ": idle | bubble | held | messages |";
    rule += " --- | --- | --- | --- |";
  }
  text += "\n" + rule + "\n";
  std::vector<std::vector<Request>> columns;
  for (const Case& c : cases) columns.push_back(shown(c, costs));
  for (std::size_t row = 0; row < columns[0].size(); ++row) {
    text += "| " + name_of(columns[0][row]) + " |";
    for (const auto& column : columns) {
      const Schedule schedule = make(column[row]);
      const Timing timing = play(schedule, column[row].costs);
      text += " " + decimal(100 * timing.idle_share, "%.1f") + " % | " +
              decimal(timing.bubble, "%.3g") + " | " + decimal(most_held_share(schedule)) + " | " +
              std::to_string(traffic(schedule).total) + " |";
    }
    text += "\n";
  }
  return text;
}

std::string by_memory() {
  const Costs costs{1, 1.4, 0.6, 0.2};
  std::string head = "| held at most |", rule = "| --- |", bubbles = "| bubble |",
              idle = "| idle |";
  for (const int memory : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12}) {
    const Timing timing = play(make({Algorithm::kAutomatic, 4, 12, 1, costs, memory}), costs);
    head += " " + std::to_string(memory) + " |";
    rule += " --- |";
    bubbles += " " + decimal(timing.bubble, "%.3g") + " |";
    idle += " " + decimal(100 * timing.idle_share, "%.1f") + " % |";
  }
  return head + "\n" + rule + "\n" + bubbles + "\n" + idle + "\n";
}

Request pictured(Algorithm algorithm) {
  Request q{algorithm, 4, 8};
  if (algorithm == Algorithm::kInterleaved || algorithm == Algorithm::kZeroBubbleV)
    q.virtual_stages = 2;
  if (algorithm == Algorithm::kAutomatic) q.costs = {1, 1.4, 0.6, 0.2};
  return q;
}

std::string section(Algorithm algorithm) {
  const internal::PipelineWords& words = internal::words_of(algorithm);
  const std::string name = to_string(algorithm);
  return "\n## " + name + "\n\n" + words.what + "\n\nSource: " + words.source +
         ".\n\n![Time line of " + name + "](" + picture_of(algorithm) +
         ")\n\n| idle or bubble | held by rank r | messages |\n| --- | --- | --- |\n| " +
         words.idle + " | " + words.held + " | " + words.messages + " |\n\n" + words.when + "\n";
}

}  // namespace

std::vector<File> pipelines() {
  std::string page = internal::kPipelines + side_by_side({{4, 8}, {8, 16}, {8, 64}}, {1, 1, 1});
  page += internal::kSlowMessages + side_by_side({{4, 8}, {8, 16}, {8, 64}}, {1, 1.2, 0.8, 0.1});
  page += internal::kMemory + by_memory();
  std::vector<File> files;
  for (const Algorithm algorithm : schedule::pipeline::algorithms()) {
    page += section(algorithm);
    files.push_back({picture_of(algorithm), render_svg(pictured(algorithm))});
  }
  files.push_back({"pipelines.md", page + internal::kAfterwards});
  return files;
}

}  // namespace weft::docs
