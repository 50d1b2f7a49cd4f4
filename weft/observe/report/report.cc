#include "weft/observe/report/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/observe/report/metrics_file.h"
#include "weft/observe/report/page.h"
#include "weft/observe/run/run_folder.h"

namespace weft::observe {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr std::size_t kPoints = 1000;

const char* const kPage =
#include "weft/observe/report/internal/page.inc"
    ;

using Point = MetricsPoint;

// Averages equal parts of a long series; returns a short series unchanged.
json averaged(const std::vector<Point>& points) {
  json result = json::array();
  const std::size_t parts = std::min(points.size(), kPoints);
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = part * points.size() / parts,
                      end = (part + 1) * points.size() / parts;
    double steps = 0, values = 0;
    for (std::size_t i = begin; i < end; ++i) {
      steps += points[i].step;
      values += points[i].value;
    }
    const auto count = static_cast<double>(end - begin);
    result.push_back({steps / count, values / count});
  }
  return result;
}

// The "key = value" lines of a config.toml, each key with its table's name as a prefix.
json read_config(const fs::path& file) {
  json config = json::object();
  std::ifstream in(file);
  std::string table;
  for (std::string line; std::getline(in, line);) {
    const auto equals = line.find(" = ");
    if (line.size() > 2 && line.front() == '[' && line.back() == ']')
      table = line.substr(1, line.size() - 2) + ".";
    if (equals != std::string::npos)
      config[table + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return config;
}

json read_object(const fs::path& file) {
  std::ifstream in(file);
  const json object = in ? json::parse(in, nullptr, /*allow_exceptions=*/false) : json::object();
  return object.is_object() ? object : json::object();
}

json data_of(const fs::path& folder, const MetricsSeries& series) {
  WEFT_REQUIRE(fs::is_regular_file(folder / "config.toml"),
               folder.string() + " is no run folder: it has no config.toml");
  json run = {{"name", fs::weakly_canonical(folder).filename().string()},
              {"config", read_config(folder / "config.toml")},
              {"environment", read_object(folder / "environment.json")},
              {"series", json::object()},
              {"median", json::object()},
              {"last", json::object()}};
  for (const auto& [name, points] : series) {
    if (name == "epoch" || points.empty()) continue;
    run["series"][name] = averaged(points);
    run["median"][name] = median(points);
    run["last"][name] = points.back().value;
    run["steps"] = std::max(run.value("steps", 0.0), points.back().step);
  }
  return run;
}

std::string text_of(const json& data) {
  return data.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string page_of(const json& data) { return fill_page(kPage, text_of(data)); }

}  // namespace

std::string report_html(const std::vector<std::string>& run_folders) {
  WEFT_REQUIRE(!run_folders.empty(), "a report needs at least one run folder");
  json runs = json::array();
  for (const auto& folder : run_folders)
    runs.push_back(data_of(folder, read_metrics(folder + "/metrics.jsonl")));
  return page_of({{"runs", runs}});
}

std::string live_html() { return page_of({{"live", true}}); }

std::string live_json(const std::string& run_folder, const MetricsSeries& series) {
  json data = {{"runs", json::array({data_of(run_folder, series)})}};
  const json ranks = read_object(run_folder + "/ranks.json");
  data["running"] = is_in_use(run_folder);
  data["ranks"] = ranks.value("ranks", json::array());
  return text_of(data);
}

void write_report(const std::vector<std::string>& run_folders, const std::string& file) {
  write_file_atomic(file, report_html(run_folders));
}

}  // namespace weft::observe
