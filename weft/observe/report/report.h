// One HTML file that shows runs: losses and metrics, throughput, parts of a step, memory,
// environment and configuration. It opens without a network. Several runs are drawn over each
// other.
#pragma once

#include <string>
#include <vector>

#include "weft/observe/report/metrics_file.h"

namespace weft::observe {

// The page for run folders (run_folder.h), in their order. Reads config.toml, environment.json and
// metrics.jsonl of each; a long series is averaged down to 1,000 points. A missing or damaged file
// leaves its part of the page empty. Throws Error(kInvalidArgument) for a folder without a
// config.toml, and for no folder.
std::string report_html(const std::vector<std::string>& run_folders);

// The page that shows a run while it trains: it asks its server for live_json() every two seconds.
std::string live_html();
// One run, as live_html() asks for it: {"runs": [{…}], "running": true, "ranks": [{"rank": 0, …}]}.
// `series`: of the run's metrics.jsonl. Throws as report_html() does.
std::string live_json(const std::string& run_folder, const MetricsSeries& series);

// Writes the page to `file`, whole or not at all. Throws Error, naming the path, where that fails.
void write_report(const std::vector<std::string>& run_folders, const std::string& file);

}  // namespace weft::observe
