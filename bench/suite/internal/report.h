// The output of a bench: tables for people, JSON lines for programs.
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

// A target and the measured value.
struct Target {
  std::string impl;
  std::string what;  // the measured quantity: "weft / weft-alone"
  double reached = 0;
  double limit = 0;
  bool at_most = true;  // `limit` is an upper bound, otherwise a lower bound
};

class Report {
 public:
  explicit Report(bool json);

  // Prints a JSON line on stdout (bench/README.md). Without json, prints nothing.
  void line(const Measurement& measurement) const;
  // Prints a row of a table on stdout, or on stderr with json. The first column is aligned left,
  // the others right.
  void row(const std::vector<std::string>& cells) const;
  void text(const std::string& line) const;
  // Prints a table of the targets. Each target is also a JSON line, whose params have "measured",
  // "target" and "good".
  void targets(const std::string& bench, const std::vector<LogField>& params,
               const std::vector<Target>& targets, int runs) const;

 private:
  bool json_;
  std::string tail_;  // commit and host, which end every line
};

// Three significant digits: "1.23", "12.3", "1234".
std::string digits(double value);
// "4.00x"; "-" for NaN and infinities.
std::string times(double ratio);
// "64 KiB", "25 MiB"; "1 KB", "25 MB" if the size is a multiple of these units only.
std::string size_text(std::size_t bytes);

}  // namespace weft::cli::bench_internal
