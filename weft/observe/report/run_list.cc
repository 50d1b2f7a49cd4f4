#include "weft/observe/report/run_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/text/numbers.h"
#include "weft/observe/report/metrics_file.h"
#include "weft/observe/run/metric_names.h"
#include "weft/observe/run/run_folder.h"

namespace weft::observe {
namespace {

namespace fs = std::filesystem;

// Bytes read at the end of metrics.jsonl.
constexpr std::int64_t kTail = 256 << 10;

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "config.toml", ignored);
}

// Reads the last value of each name. Training losses and evaluation results are on separate lines,
// so each name is looked up by itself.
void read_last(const MetricsSeries& series, RunInfo& info) {
  const auto last = [&](const char* name) -> std::optional<MetricsPoint> {
    const auto found = series.find(name);
    if (found == series.end() || found->second.empty()) return std::nullopt;
    return found->second.back();
  };
  const auto value = [&](const char* name) -> std::optional<double> {
    const auto point = last(name);
    if (!point) return std::nullopt;
    return point->value;
  };
  if (const auto epoch = last("epoch")) {
    info.step = static_cast<std::int64_t>(epoch->step);
    info.epoch = static_cast<std::int64_t>(epoch->value);
  }
  info.loss = value("loss");
  info.test_loss = value("test_loss");
  info.accuracy = value("accuracy");
  for (const auto& [name, points] : series) {
    const bool is_own = !is_of_weft(name) && name != "accuracy" && !points.empty();
    if (is_own) info.own.emplace_back(name, points.back().value);
  }
}

std::optional<std::int64_t> newest_checkpoint(const fs::path& folder) {
  std::optional<std::int64_t> newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.rfind("step-", 0) != 0) continue;
    if (const auto step = parse_number<std::int64_t>(name.substr(5)))
      newest = std::max(newest.value_or(*step), *step);
  }
  return newest;
}

std::chrono::system_clock::time_point changed_at(const fs::path& folder) {
  struct stat status {};
  for (const char* name : {"metrics.jsonl", "config.toml"}) {
    if (::stat((folder / name).c_str(), &status) == 0) break;
  }
  return std::chrono::system_clock::from_time_t(status.st_mtime);
}

}  // namespace

RunInfo read_run(const std::string& path) {
  const std::string file = path + "/metrics.jsonl";
  MetricsSeries series = read_metrics(file, kTail);
  if (!series.contains("test_loss")) series.merge(last_record_with(file, "test_loss"));
  return read_run(path, series);
}

RunInfo read_run(const std::string& path, const MetricsSeries& series) {
  const fs::path folder = path;
  WEFT_REQUIRE(is_run(folder), path + " is no run folder: it has no config.toml");
  RunInfo info;
  info.name = folder.filename();
  info.running = is_in_use(path);
  read_last(series, info);
  info.checkpoint = newest_checkpoint(folder / "ckpt");
  info.changed = changed_at(folder);
  return info;
}

std::vector<RunInfo> list_runs(const std::string& parent) {
  std::error_code error;
  const fs::directory_iterator entries(parent, error);
  if (error) fail_io("cannot list the runs in", parent, error.value());
  std::vector<RunInfo> runs;
  for (const auto& entry : entries) {
    if (is_run(entry.path())) runs.push_back(read_run(entry.path().string()));
  }
  std::sort(runs.begin(), runs.end(), [](const RunInfo& a, const RunInfo& b) {
    return a.changed != b.changed ? a.changed > b.changed : a.name > b.name;
  });
  return runs;
}

}  // namespace weft::observe
