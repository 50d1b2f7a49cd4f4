// Compares predictions with published tables.
#pragma once

#include <string>
#include <vector>

#include "bench/plan_tables/cases.h"
#include "weft/plan/cost/calibrated.h"

namespace weft::plan::tables {

struct CaseResult {
  Case one;
  double predicted = 0;  // In the units of `one.measured`.
  double error = 0;      // predicted / measured - 1; for kFits and kFormula 0 (right) or 1.
  Generation generation = Generation::kOther;
  std::string failure;  // Why there is no prediction; empty: there is one.
  bool counts() const { return failure.empty() && one.exception.empty(); }
};

// Errors of the cases of one quantity.
struct Errors {
  int count = 0;
  double median = 0, mean = 0, worst = 0;  // Of their absolute values.
};
Errors errors_of(const std::vector<CaseResult>& results, Quantity quantity, bool exceptions);

// Rank order within groups.
struct Order {
  int groups = 0;  // Groups of at least three cases.
  double tau = 0;  // Kendall's tau over all pairs within groups.
  int pairs = 0;
  int best_in_top3 = 0;  // Groups whose measured best is among the three predicted best.
};
Order order_of(const std::vector<CaseResult>& results);
// Kendall's tau of two lists: concordant minus discordant pairs over all pairs; pairs that
// differ by less than 1 % in the first list do not count.
double kendall_tau(const std::vector<double>& a, const std::vector<double>& b,
                   int* pairs = nullptr);

struct TableReport {
  std::string table;
  int rows = 0;
  std::vector<CaseResult> results;
  std::vector<Skipped> skipped;
};

// Predicts all cases of the tables (*.csv) of a folder. Throws what read_file() and parse_csv()
// throw, and Error(kInvalidArgument) if there is no table.
std::vector<TableReport> validate_folder(const std::string& folder, const Calibration& constants);
TableReport validate_table(const CsvTable& table, const Calibration& constants);
CaseResult predict_case(const Case& one, const Calibration& constants);

// Errors of time when a generation's two constants are fitted to a part of the cases and tested on
// the rest.
struct CrossCheck {
  Generation generation = Generation::kOther;
  std::string test;  // "odd rows", or the table that was left out.
  Fitted fitted;     // To the other cases.
  Errors fit, rest;  // With these constants.
  Errors shipped;    // Of `rest`, with the constants of calibrated.cc.
};
std::vector<CrossCheck> cross_checks(const std::vector<TableReport>& tables);

// One generation, over all its rows: errors with constants that were fitted to them, beside errors
// of each table with constants that were fitted without it, and errors of each half of the rows of
// every table with constants that were fitted to the other half. Where no other table has rows of
// it, the constants of the generation before it stand in.
struct LeftOut {
  Generation generation = Generation::kOther;
  int tables = 0, rows = 0;
  Fitted fitted;
  double shipped = 0, fit = 0, left_out = 0, halves = 0;  // Mean errors.
};
std::vector<LeftOut> left_out_checks(const std::vector<TableReport>& tables,
                                     const std::vector<CrossCheck>& checks);

// The tables as Markdown, for docs/planning-results.md, and as text for a terminal.
std::string to_markdown(const std::vector<TableReport>& tables,
                        const std::vector<CrossCheck>& checks,
                        const std::vector<LeftOut>& left_out);

}  // namespace weft::plan::tables
