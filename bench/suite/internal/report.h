// What a bench prints: tables for people, JSON lines for programs.
#pragma once

#include <string>
#include <vector>

#include "bench/suite/internal/rounds.h"
#include "weft/base/log.h"

namespace weft::cli::bench_internal {

struct Measurement {
  std::string bench;
  std::vector<LogField> params;  // impl first
  double value = 0;
  std::string unit;
  int runs = 0;
  double p95 = -1;                  // negative: none
  std::vector<double> rounds = {};  // the median of each round
};

// What was to be reached, and what was.
struct Target {
  std::string impl;
  std::string what;  // is measured: "weft / weft-alone"
  double reached = 0;
  double limit = 0;
  bool at_most = true;  // else at least
};

class Report {
 public:
  explicit Report(bool json);

  // A JSON line on stdout (bench/README.md). Nothing without json.
  void line(const Measurement& measurement) const;
  // Columns of a table, right-aligned, the first left: on stdout, or with json on stderr.
  void row(const std::vector<std::string>& cells) const;
  void text(const std::string& line) const;
  // A table of targets, none where there are none; each a JSON line too, whose params have
  // "measured", "target" and "good".
  void targets(const std::string& bench, const std::vector<LogField>& params,
               const std::vector<Target>& targets, int runs) const;

 private:
  bool json_;
  std::string tail_;  // commit and host, the same on every line
};

// Three significant digits: "1.23", "12.3", "1234".
std::string digits(double value);
// "4.00x"; "-" for what is not a number.
std::string times(double ratio);
// "64 KiB", "25 MiB"; "1 KB", "25 MB" where only those come out even.
std::string size_text(std::size_t bytes);

}  // namespace weft::cli::bench_internal
