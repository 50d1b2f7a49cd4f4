#include "weft/observe/report/metrics_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace weft::observe {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Calls add(name, point) for each value of the record on the line.
template <class Add>
void read_record(const std::string& line, const Add& add) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("step") || !record["step"].is_number()) return;
  const double step = record["step"];
  for (const auto& [name, value] : record.items()) {
    if (name == "step" || !(value.is_number() || value.is_null())) continue;
    add(name, MetricsPoint{step, value.is_null() ? kNaN : value.template get<double>()});
  }
}

void add_record(const std::string& line, MetricsSeries& series) {
  read_record(line, [&](const std::string& name, const MetricsPoint& point) {
    series[name].push_back(point);
  });
}

}  // namespace

MetricsSeries read_metrics(const std::string& file, std::int64_t max_bytes) {
  MetricsSeries series;
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return series;
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - max_bytes));
  for (std::string line; std::getline(in, line);) add_record(line, series);
  return series;
}

MetricsSeries last_record_with(const std::string& file, const std::string& name) {
  constexpr std::streamoff kBlock = 1 << 20, kMost = 64 << 20;
  const std::string key = '"' + name + '"';
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  std::string text;  // the file from `begin` on, up to the first line that was looked at
  const std::streamoff size = in ? static_cast<std::streamoff>(in.tellg()) : 0;
  for (std::streamoff begin = size; begin > 0 && size - begin < kMost;) {
    std::string block(static_cast<std::size_t>(std::min(kBlock, begin)), '\0');
    begin -= static_cast<std::streamoff>(block.size());
    in.seekg(begin);
    if (!in.read(block.data(), static_cast<std::streamsize>(block.size()))) break;  // it was cut
    text.insert(0, block);
    // The first line may begin before.
    const std::size_t first = begin == 0 ? 0 : std::min(text.find('\n'), text.size() - 1) + 1;
    for (auto at = text.rfind(key); at != std::string::npos && at >= first;) {
      const std::size_t start = text.rfind('\n', at) + 1;  // npos + 1 is 0
      MetricsSeries record;
      add_record(text.substr(start, text.find('\n', at) - start), record);
      if (record.contains(name)) return record;
      at = start == 0 ? std::string::npos : text.rfind(key, start - 1);
    }
    text.resize(first);
  }
  return {};
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
    thinning_.clear();
  }
  in.clear();
  in.seekg(read_);
  for (std::string line; std::getline(in, line) && !in.eof();) {  // eof: the line is incomplete
    read_ += static_cast<std::int64_t>(line.size()) + 1;
    read_record(line,
                [this](const std::string& name, const MetricsPoint& point) { add(name, point); });
    last_ = std::move(line);
  }
  return series_;
}

void MetricsFollower::add(const std::string& name, const MetricsPoint& point) {
  auto& points = series_[name];
  auto& [records, every] = thinning_[name];
  if (records % every != 0) points.pop_back();  // it was only the newest
  points.push_back(point);
  ++records;
  if (points.size() < most_points_) return;
  const auto that_stay = static_cast<std::size_t>(records / every);
  every *= 2;
  std::size_t kept = 0;
  for (std::size_t i = 1; i < that_stay; i += 2) points[kept++] = points[i];
  if (records % every != 0) points[kept++] = point;
  points.resize(kept);
}

double median(std::vector<MetricsPoint> points) {
  std::erase_if(points, [](const MetricsPoint& point) { return std::isnan(point.value); });
  if (points.empty()) return kNaN;
  const auto middle = points.begin() + static_cast<std::ptrdiff_t>(points.size() / 2);
  std::nth_element(points.begin(), middle, points.end(),
                   [](const auto& a, const auto& b) { return a.value < b.value; });
  if (points.size() % 2 == 1) return middle->value;
  const auto below = std::max_element(
      points.begin(), middle, [](const auto& a, const auto& b) { return a.value < b.value; });
  return (below->value + middle->value) / 2;
}

}  // namespace weft::observe
