// Creates one HTML file that shows runs: losses and metrics, throughput, parts of a step, memory,
// environment and configuration. The file needs no network. The charts overlay several runs.
#pragma once

#include <string>
#include <vector>

#include "weft/observe/report/metrics_file.h"

namespace weft::observe {

// The page for these run folders (run_folder.h), in the given order. Reads config.toml,
// environment.json and metrics.jsonl of each; a long series is averaged down to 1,000 points. A
// missing or damaged file leaves its part of the page empty. Throws Error(kInvalidArgument) if
// there is no folder, or if a folder has no config.toml.
std::string report_html(const std::vector<std::string>& run_folders);

// The page that shows a run while it trains. It requests live_json() from its server every two
// seconds.
std::string live_html();
// The data of one run for live_html(): {"runs": [{…}], "running": true, "ranks": [{"rank": 0, …}]}.
// `series`: the content of the run's metrics.jsonl. Throws the same errors as report_html().
std::string live_json(const std::string& run_folder, const MetricsSeries& series);

// Writes report_html() to `file` atomically. Throws Error, naming the path, if that fails.
void write_report(const std::vector<std::string>& run_folders, const std::string& file);

}  // namespace weft::observe
