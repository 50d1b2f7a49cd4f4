// The runs in a folder, as their files show them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::observe {

// What a run folder says of its run. Numbers that are not there yet are none.
struct RunInfo {
  std::string name;
  bool running = false;  // a process holds the folder's lock
  std::optional<std::int64_t> step, epoch;
  std::optional<double> loss, test_loss, accuracy;
  std::optional<std::int64_t> checkpoint;         // step of the newest one
  std::chrono::system_clock::time_point changed;  // of the metrics, else of the configuration
};

// The run in `folder`. Throws Error(kInvalidArgument) for a folder without a config.toml.
RunInfo read_run(const std::string& folder);

// The runs in `parent`, the last to change first. Folders without a config.toml are no runs. Throws
// Error where `parent` cannot be read.
std::vector<RunInfo> list_runs(const std::string& parent);

}  // namespace weft::observe
