// The content of the live page and of /metrics, read from a run folder at most once a second.
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

// A run's metrics in Prometheus's text format 0.0.4. `series`: the content of metrics.jsonl.
// `ranks_json`: the content of ranks.json; may be empty.
std::string prometheus_text(const RunInfo& run, const MetricsSeries& series,
                            const std::string& ranks_json);
// The metrics in the same format before there is a run.
std::string prometheus_text_without_run();

// Any thread may call any method. All clients share one copy of the data, so more clients cause no
// more reads.
class RunView {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RunView(std::function<Clock::time_point()> now = Clock::now) : now_(std::move(now)) {}

  // Follows this run from now on. The folder may appear later.
  void follow(const std::string& run_folder);
  // The result of live_json() (report/report.h); none before there is a run.
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
