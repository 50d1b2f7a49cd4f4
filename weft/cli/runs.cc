// `weft runs`: lists the runs of a folder, the most recently changed first.
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "weft/base/json/json.h"
#include "weft/base/text/numbers.h"
#include "weft/base/text/words.h"
#include "weft/cli/commands.h"
#include "weft/cli/internal/table.h"
#include "weft/observe/report/run_list.h"

namespace weft::cli {
namespace {

using Row = std::vector<std::string>;

std::string number(const std::optional<double>& value) { return value ? shortened(*value) : "-"; }

std::string number(const std::optional<std::int64_t>& value) {
  return value ? std::to_string(*value) : "-";
}

// "top5=0.93 f1=0.81".
std::string own_metrics(const observe::RunInfo& run) {
  std::string text;
  for (const auto& [name, value] : run.own)
    text += (text.empty() ? "" : " ") + name + "=" + number(std::optional(value));
  return text.empty() ? "-" : text;
}

Row row_of(const observe::RunInfo& run) {
  return {run.name,
          run.running ? "running" : "ended",
          number(run.epoch),
          number(run.step),
          number(run.loss),
          number(run.test_loss),
          number(run.accuracy),
          own_metrics(run),
          number(run.checkpoint),
          local_time(run.changed)};
}

void print_json(const observe::RunInfo& run) {
  nlohmann::ordered_json line = {{"name", run.name}, {"running", run.running}};
  const auto put = [&](const char* name, const auto& value) {
    if (value) line[name] = *value;
  };
  put("epoch", run.epoch);
  put("step", run.step);
  put("loss", run.loss);
  put("test_loss", run.test_loss);
  put("accuracy", run.accuracy);
  put("checkpoint", run.checkpoint);
  for (const auto& [name, value] : run.own) line["own"][name] = value;
  line["changed"] = std::chrono::system_clock::to_time_t(run.changed);
  std::cout << json_line(line) << '\n';
}

}  // namespace

int list_runs(const RunsCommand& command) {
  const auto runs = observe::list_runs(command.folder);
  if (command.json) {
    for (const auto& run : runs) print_json(run);
    return 0;
  }
  if (runs.empty()) {
    std::cerr << "there is no run in " << command.folder << '\n';
    return 0;
  }
  std::vector<Row> rows{{"RUN", "STATE", "EPOCH", "STEP", "LOSS", "TEST LOSS", "ACCURACY",
                         "OTHER METRICS", "CHECKPOINT", "CHANGED"}};
  for (const auto& run : runs) rows.push_back(row_of(run));
  print_table(rows);
  return 0;
}

}  // namespace weft::cli
