#include "weft/observe/report/metrics_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace weft::observe {
namespace {

// Into `not_finite`: the names that are null here; those that are numbers leave it.
void add_record(const std::string& line, MetricsSeries& series, std::set<std::string>& not_finite) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("step") || !record["step"].is_number()) return;
  const double step = record["step"];
  for (const auto& [name, value] : record.items()) {
    if (value.is_null()) not_finite.insert(name);
    if (name == "step" || !value.is_number()) continue;
    series[name].push_back({step, value});
    not_finite.erase(name);
  }
}

// Keeps the last point.
void halve(std::vector<MetricsPoint>& points) {
  const std::size_t kept = (points.size() + 1) / 2, first = (points.size() + 1) % 2;
  for (std::size_t i = 0; i < kept; ++i) points[i] = points[2 * i + first];
  points.resize(kept);
}

}  // namespace

MetricsSeries read_metrics(const std::string& file, std::int64_t max_bytes) {
  MetricsSeries series;
  std::set<std::string> not_finite;
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return series;
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - max_bytes));
  for (std::string line; std::getline(in, line);) add_record(line, series, not_finite);
  return series;
}

// True if the line that was read last is still where it was. A resumed run may have dropped records
// and written others since, so that the file is longer again.
bool MetricsFollower::has_last(std::istream& in) const {
  std::string line;
  in.seekg(read_ - static_cast<std::int64_t>(last_.size()) - (read_ > 0 ? 1 : 0));
  return read_ == 0 || (std::getline(in, line) && !in.eof() && line == last_);
}

const MetricsSeries& MetricsFollower::update() {
  std::ifstream in(file_, std::ios::binary | std::ios::ate);
  const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : 0;
  if (size < read_ || !has_last(in)) {
    read_ = 0;
    last_.clear();
    series_.clear();
    not_finite_.clear();
  }
  in.clear();
  in.seekg(read_);
  for (std::string line; std::getline(in, line) && !in.eof();) {  // eof: the line is incomplete
    read_ += static_cast<std::int64_t>(line.size()) + 1;
    add_record(line, series_, not_finite_);
    last_ = std::move(line);
  }
  for (auto& [name, points] : series_) {
    if (points.size() >= most_points_) halve(points);
  }
  return series_;
}

double median(std::vector<MetricsPoint> points) {
  const auto middle = points.begin() + static_cast<std::ptrdiff_t>(points.size() / 2);
  std::nth_element(points.begin(), middle, points.end(),
                   [](const auto& a, const auto& b) { return a.value < b.value; });
  if (points.size() % 2 == 1) return middle->value;
  const auto below = std::max_element(
      points.begin(), middle, [](const auto& a, const auto& b) { return a.value < b.value; });
  return (below->value + middle->value) / 2;
}

}  // namespace weft::observe
