// Reads the metrics.jsonl that Metrics (metrics.h) writes: for reports, lists of runs and live
// views.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::observe {

struct MetricsPoint {
  double step = 0, value = 0;
};
using MetricsSeries = std::map<std::string, std::vector<MetricsPoint>>;

// The values of each name in a metrics.jsonl, in the order of the file. "epoch" is one of the
// names. Reads at most the last `max_bytes`. Skips values that are not numbers and lines that are
// cut or damaged. Empty if there is no file.
MetricsSeries read_metrics(const std::string& file, std::int64_t max_bytes = std::int64_t{1} << 40);

// Reads a metrics.jsonl that grows. Each call reads only the lines added since the last one.
// Whenever a series reaches `most_points`, it drops every second point.
class MetricsFollower {
 public:
  explicit MetricsFollower(std::string file, std::size_t most_points = 1 << 16)
      : file_(std::move(file)), most_points_(most_points) {}
  // Reads the new complete lines. If the file became shorter, or lines that were read have changed,
  // reads it again from the start.
  const MetricsSeries& update();
  // The names whose last value is null (NaN or infinite). The series end before it.
  const std::set<std::string>& not_finite() const { return not_finite_; }

 private:
  bool has_last(std::istream& in) const;

  std::string file_;
  std::size_t most_points_;
  std::int64_t read_ = 0;  // bytes read so far
  std::string last_;       // the last line of them
  MetricsSeries series_;
  std::set<std::string> not_finite_;
};

// The median of the values: of an even number, the mean of the two in the middle. There must be at
// least one point.
double median(std::vector<MetricsPoint> points);

}  // namespace weft::observe
