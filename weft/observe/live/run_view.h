// What a live page and Prometheus are told of a run: read from its folder, at most once a second.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "weft/observe/report/metrics_file.h"
#include "weft/observe/report/run_list.h"

namespace weft::observe {

// Prometheus's text format 0.0.4. `series` and `ranks_json` (the run's ranks.json; may be empty) as
// the run folder has them.
std::string prometheus_text(const RunInfo& run, const MetricsSeries& series,
                            const std::string& ranks_json);
// The same before there is a run.
std::string prometheus_text_without_run();

// Any thread may call any method. Clients share what was read, so more of them cost no more reads.
class RunView {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RunView(std::function<Clock::time_point()> now = Clock::now) : now_(std::move(now)) {}

  // Follows this run from now on. The folder may appear later.
  void follow(const std::string& run_folder);
  // As live_json() (report/report.h); none before there is a run.
  std::optional<std::string> json();
  std::string metrics();

 private:
  void refresh();

  const std::function<Clock::time_point()> now_;
  std::mutex mutex_;  // guards the rest
  std::string folder_;
  std::unique_ptr<MetricsFollower> follower_;
  std::optional<Clock::time_point> read_;
  std::optional<std::string> json_;
  std::string metrics_;
};

}  // namespace weft::observe
