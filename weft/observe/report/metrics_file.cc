#include "weft/observe/report/metrics_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace weft::observe {

MetricsSeries read_metrics(const std::string& file, std::int64_t max_bytes) {
  MetricsSeries series;
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return series;
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - max_bytes));
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("step") || !record["step"].is_number()) continue;
    const double step = record["step"];
    for (const auto& [name, value] : record.items()) {
      if (name != "step" && value.is_number()) series[name].push_back({step, value});
    }
  }
  return series;
}

double median(std::vector<MetricsPoint> points) {
  const auto middle = points.begin() + static_cast<std::ptrdiff_t>(points.size() / 2);
  std::nth_element(points.begin(), middle, points.end(),
                   [](const auto& a, const auto& b) { return a.value < b.value; });
  return middle->value;
}

}  // namespace weft::observe
