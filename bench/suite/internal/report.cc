#include "bench/suite/internal/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <thread>

#include "bench/suite/internal/peers.h"
#include "weft/observe/report/environment.h"

namespace weft::cli::bench_internal {
namespace {

constexpr int kFirstColumn = 22, kColumn = 15, kTarget = 42;

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

// The commit of the source tree that contains the program.
std::string commit() {
  const auto readme = find_above("bench/README.md");
  if (!readme) return "unknown";
  const std::string folder = readme->substr(0, readme->rfind("/bench/"));
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(
      popen(("git -C '" + folder + "' describe --always --dirty --abbrev=12 2>/dev/null").c_str(),
            "r"),
      pclose);
  char text[128] = "unknown";
  if (!pipe || std::fgets(text, sizeof text, pipe.get()) == nullptr) return "unknown";
  const std::string line = text;
  return line.substr(0, line.find('\n'));
}

}  // namespace

Report::Report(bool json) : json_(json) {
  tail_ = ",\"commit\":" + json_quote(commit()) +
          ",\"host\":{\"cpu\":" + json_quote(observe::processor_name()) +
          ",\"cores\":" + std::to_string(std::thread::hardware_concurrency()) + "}}";
}

void Report::line(const Measurement& measurement) const {
  if (!json_) return;
  std::string line = "{\"bench\":" + json_quote(measurement.bench) + ",\"params\":{";
  for (const auto& field : measurement.params)
    line += (line.back() == '{' ? "" : ",") + json_quote(field.name) + ":" + field.json;
  line += "},\"value\":" + json_number(measurement.value) +
          ",\"unit\":" + json_quote(measurement.unit) +
          ",\"runs\":" + std::to_string(measurement.runs);
  if (measurement.p95 >= 0) line += ",\"p95\":" + json_number(measurement.p95);
  if (!measurement.rounds.empty()) line += ",\"rounds\":" + json_array(measurement.rounds);
  std::cout << line << tail_ << std::endl;
}

void Report::row(const std::vector<std::string>& cells) const {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::size_t width = i == 0 ? kFirstColumn : kColumn;
    const std::string blanks(cells[i].size() < width ? width - cells[i].size() : 1, ' ');
    line += i == 0 ? cells[i] + blanks : blanks + cells[i];
  }
  text(line);
}

void Report::text(const std::string& line) const {
  (json_ ? std::cerr : std::cout) << line << std::endl;
}

void Report::targets(const std::string& bench, const std::vector<LogField>& params,
                     const std::vector<Target>& targets, int runs) const {
  for (const auto& target : targets) {
    const bool good =
        target.at_most ? target.reached <= target.limit : target.reached >= target.limit;
    const std::string limit =
        (target.at_most ? "at most " : "at least ") + format("%.2f", target.limit);
    std::string name = target.what;
    name.resize(std::max<std::size_t>(name.size(), kTarget), ' ');
    text("  " + name + format("%7.3f", target.reached) + "   " + limit +
         (good ? "   reached" : "   MISSED"));
    std::vector<LogField> all = {{"impl", target.impl}};
    all.insert(all.end(), params.begin(), params.end());
    all.insert(all.end(), {{"measured", target.what}, {"target", limit}, {"good", good}});
    line({bench, all, target.reached, "times", runs});
  }
}

std::string digits(double value) {
  if (!std::isfinite(value)) return "-";
  return format(std::abs(value) >= 100 ? "%.0f" : std::abs(value) >= 10 ? "%.1f" : "%.2f", value);
}

std::string times(double ratio) { return std::isfinite(ratio) ? format("%.2fx", ratio) : "-"; }

std::string size_text(std::size_t bytes) {
  struct Unit {
    std::size_t bytes;
    const char* name;
  };
  for (const Unit unit :
       {Unit{1 << 20, " MiB"}, Unit{1'000'000, " MB"}, Unit{1 << 10, " KiB"}, Unit{1000, " KB"}}) {
    if (bytes > 0 && bytes % unit.bytes == 0) return std::to_string(bytes / unit.bytes) + unit.name;
  }
  return std::to_string(bytes) + " B";
}

}  // namespace weft::cli::bench_internal
