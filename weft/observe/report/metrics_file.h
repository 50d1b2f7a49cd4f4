// Reads what Metrics (metrics.h) wrote: for reports, lists of runs and live views.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::observe {

struct MetricsPoint {
  double step = 0, value = 0;
};
using MetricsSeries = std::map<std::string, std::vector<MetricsPoint>>;

// The values of each name in a metrics.jsonl, in the file's order; "epoch" is one of them. Reads at
// most the last `max_bytes`. Leaves out what is not a number and lines that are cut or damaged.
// Empty where there is no file.
MetricsSeries read_metrics(const std::string& file, std::int64_t max_bytes = std::int64_t{1} << 40);

// Reads a metrics.jsonl that grows. Each call costs what was added since the last one. A long
// series loses every second of its points whenever it reaches `most_points`.
class MetricsFollower {
 public:
  explicit MetricsFollower(std::string file, std::size_t most_points = 1 << 16)
      : file_(std::move(file)), most_points_(most_points) {}
  // Reads the whole lines that are new. A file that became shorter is read from its start.
  const MetricsSeries& update();

 private:
  std::string file_;
  std::size_t most_points_;
  std::int64_t read_ = 0;  // bytes
  MetricsSeries series_;
};

// The median of the values, of at least one point.
double median(std::vector<MetricsPoint> points);

}  // namespace weft::observe
