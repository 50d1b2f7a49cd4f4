// Lists the runs in a folder, from the files in their run folders.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/observe/report/metrics_file.h"

namespace weft::observe {

// The state of a run, read from its folder. Numbers that are not known yet are none. NaN: the last
// value is NaN or infinite.
struct RunInfo {
  std::string name;
  bool running = false;  // a process holds the folder's lock
  std::optional<std::int64_t> step, epoch;
  std::optional<double> loss, test_loss, accuracy;
  // Last values of the other metrics of the task, and of those that the program logs, by name.
  std::vector<std::pair<std::string, double>> own;
  std::optional<std::int64_t> checkpoint;         // step of the newest checkpoint
  std::chrono::system_clock::time_point changed;  // time of metrics.jsonl, else of config.toml
};

// The run in `folder`. Reads the end of metrics.jsonl, and back from there to the last evaluation.
// A value that the program logged longer ago is left out. Throws Error(kInvalidArgument) for a
// folder without a config.toml.
RunInfo read_run(const std::string& folder);
// The same. `series`: the content of the run's metrics.jsonl.
RunInfo read_run(const std::string& folder, const MetricsSeries& series);

// The runs in `parent`, the most recently changed first. Folders without a config.toml are skipped.
// Throws Error if `parent` cannot be read.
std::vector<RunInfo> list_runs(const std::string& parent);

}  // namespace weft::observe
