// Reads what Metrics (metrics.h) wrote: for reports, lists of runs and live views.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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

// The median of the values, of at least one point.
double median(std::vector<MetricsPoint> points);

}  // namespace weft::observe
