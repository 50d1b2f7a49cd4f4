// Reads the metrics.jsonl that Metrics (metrics.h) writes: for reports, lists of runs and live
// views.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::observe {

struct MetricsPoint {
  double step = 0;
  double value = 0;  // NaN: the record has null.
};
using MetricsSeries = std::map<std::string, std::vector<MetricsPoint>>;

// The values of each name in a metrics.jsonl, in the order of the file. "epoch" is one of the
// names. Reads at most the last `max_bytes`. A null, which Metrics writes for NaN and infinities,
// is NaN. Skips other values that are not numbers, and lines that are cut or damaged. Empty if
// there is no file.
MetricsSeries read_metrics(const std::string& file, std::int64_t max_bytes = std::int64_t{1} << 40);

// The newest record of a metrics.jsonl that has `name`, as series of one point. Reads back from the
// end of the file, at most 64 MiB. Empty if there is none.
MetricsSeries last_record_with(const std::string& file, const std::string& name);

// Reads a metrics.jsonl that grows. Each call reads only the lines added since the last one.
// Whenever a series reaches `most_points`, it drops every second point, and from then on takes half
// as many of the new ones. So its points stay equally far apart, but for the last one, which is the
// newest.
class MetricsFollower {
 public:
  explicit MetricsFollower(std::string file, std::size_t most_points = 1 << 16)
      : file_(std::move(file)), most_points_(most_points) {}
  // Reads the new complete lines. If the file became shorter, or lines that were read have changed,
  // reads it again from the start.
  const MetricsSeries& update();

 private:
  struct Thinning {
    std::int64_t records = 0;  // so far
    std::int64_t every = 1;    // the point of every so-many-th record stays
  };
  void add(const std::string& name, const MetricsPoint& point);
  bool has_last(std::istream& in) const;

  std::string file_;
  std::size_t most_points_;
  std::int64_t read_ = 0;  // bytes read so far
  std::string last_;       // the last line of them
  MetricsSeries series_;
  std::map<std::string, Thinning> thinning_;  // by name
};

// The median of the values: of an even number, the mean of the two in the middle. NaN if no value
// is a number.
double median(std::vector<MetricsPoint> points);

}  // namespace weft::observe
