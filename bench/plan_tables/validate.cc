#include "bench/plan_tables/validate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/plan/scenario/scenario.h"
#include "weft/plan/search/search.h"

namespace weft::plan::tables {
namespace {

constexpr double kTie = 0.01;
constexpr std::size_t kMaxFile = 8 << 20;

// The layout of a row that does not name it: the best of a space of the row's framework.
Step chosen_step(const Job& job, Choice choice) {
  if (choice == Choice::kGiven) return simulate_step(job);
  SearchOptions options;
  options.headroom = 0;
  options.keep = 1;
  options.refine = false;
  options.space.cp = false;
  options.space.schedules = {schedule::pipeline::Algorithm::kOneForwardOneBackward};
  options.space.recomputes = {job.layout.recompute};
  if (choice == Choice::kWithinOperators) options.space.pp = false;
  if (choice == Choice::kStages) options.space.only_pp = job.layout.pp;
  const Found found = search(job, options);
  const std::vector<LayoutCandidate>& any = found.best.empty() ? found.nearest : found.best;
  WEFT_REQUIRE(!any.empty(), "no layout of the row's kind runs the model");
  return any.front().step;
}

double predicted_of(const Case& one, const Step& step) {
  switch (one.quantity) {
    case Quantity::kSeconds: return step.seconds;
    case Quantity::kMemory: return step.peak().allocated();
    case Quantity::kFits: return step.fits ? 1 : 0;
    case Quantity::kFormula: return step.peak().states() / 1e9;
    case Quantity::kRatio: return step.samples_per_s;
  }
  return 0;
}

void set_error(CaseResult& result) {
  const Case& one = result.one;
  if (one.quantity == Quantity::kFits) {
    result.error = result.predicted == one.measured ? 0 : 1;
  } else if (one.quantity == Quantity::kFormula) {
    const bool right = std::fabs(result.predicted - one.measured) <= one.digit * (1 + 1e-9);
    result.error = right ? 0 : 1;
  } else if (one.quantity == Quantity::kRatio) {
    result.error = one.measured / result.predicted - 1;  // as an error of time
  } else {
    result.error = result.predicted / one.measured - 1;
  }
}

}  // namespace

CaseResult predict_case(const Case& one, const Calibration& constants) {
  CaseResult result{.one = one, .predicted = one.predicted, .generation = one.generation};
  if (!one.scenario.empty()) {
    try {
      Scenario scenario = parse_scenario(one.scenario, one.label);
      scenario.job.constants = &constants;
      result.generation = scenario.job.cluster.accelerators[0].generation;
      const Step step = chosen_step(scenario.job, one.choice);
      result.predicted = predicted_of(one, step);
      if (one.quantity == Quantity::kRatio) {
        Scenario unit = parse_scenario(one.unit, one.label);
        unit.job.constants = &constants;
        result.predicted /= simulate_step(unit.job).samples_per_s;
      }
      if (one.quantity == Quantity::kMemory && scenario.job.software.reports_context)
        result.predicted = step.peak().total();
    } catch (const Error& error) {
      result.failure = error.message();
      return result;
    }
  }
  set_error(result);
  return result;
}

TableReport validate_table(const CsvTable& table, const Calibration& constants) {
  TableReport report{.table = table.name, .rows = static_cast<int>(table.rows.size())};
  Cases cases = cases_of(table);
  report.skipped = std::move(cases.skipped);
  for (const Case& one : cases.cases) report.results.push_back(predict_case(one, constants));
  return report;
}

std::vector<TableReport> validate_folder(const std::string& folder, const Calibration& constants) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".csv") files.push_back(entry.path().string());
  WEFT_REQUIRE(!error, folder + ": " + error.message() + "; give the folder of the tables");
  WEFT_REQUIRE(!files.empty(), folder + " has no tables (*.csv)");
  std::sort(files.begin(), files.end());
  std::vector<TableReport> reports;
  for (const std::string& file : files) {
    const std::string name = fs::path(file).stem().string();
    reports.push_back(validate_table(parse_csv(read_file(file, kMaxFile), name), constants));
  }
  return reports;
}

Errors errors_of(const std::vector<CaseResult>& results, Quantity quantity, bool exceptions) {
  std::vector<double> all;
  for (const CaseResult& r : results) {
    if (r.one.quantity != quantity || !r.failure.empty()) continue;
    if (!exceptions && !r.one.exception.empty()) continue;
    all.push_back(std::fabs(r.error));
  }
  Errors errors{.count = static_cast<int>(all.size())};
  if (all.empty()) return errors;
  std::sort(all.begin(), all.end());
  const std::size_t n = all.size();
  errors.median = n % 2 == 1 ? all[n / 2] : (all[n / 2 - 1] + all[n / 2]) / 2;
  for (const double e : all) errors.mean += e / static_cast<double>(n);
  errors.worst = all.back();
  return errors;
}

double kendall_tau(const std::vector<double>& a, const std::vector<double>& b, int* pairs) {
  int agree = 0, differ = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      // Closer than measurements repeat.
      if (std::fabs(a[i] - a[j]) <= kTie * std::max(std::fabs(a[i]), std::fabs(a[j]))) continue;
      const double product = (a[i] - a[j]) * (b[i] - b[j]);
      if (product > 0) ++agree;
      if (product <= 0) ++differ;
    }
  }
  if (pairs != nullptr) *pairs = agree + differ;
  return agree + differ == 0 ? 0 : static_cast<double>(agree - differ) / (agree + differ);
}

Order order_of(const std::vector<CaseResult>& results) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> groups;
  for (const CaseResult& r : results) {
    const bool times = r.one.quantity == Quantity::kSeconds || r.one.quantity == Quantity::kRatio;
    if (!times || !r.counts() || r.one.group.empty()) continue;
    const bool ratio = r.one.quantity == Quantity::kRatio;
    auto& [measured, predicted] = groups[r.one.group];
    measured.push_back(ratio ? 1 / r.one.measured : r.one.measured);
    predicted.push_back(ratio ? 1 / r.predicted : r.predicted);
  }
  Order order;
  double sum = 0;
  for (const auto& [name, lists] : groups) {
    const auto& [measured, predicted] = lists;
    if (measured.size() < 3) continue;
    ++order.groups;
    int pairs = 0;
    sum += kendall_tau(measured, predicted, &pairs) * pairs;
    order.pairs += pairs;
    const auto best = std::min_element(measured.begin(), measured.end()) - measured.begin();
    const double of_best = predicted[static_cast<std::size_t>(best)];
    const auto faster =
        std::count_if(predicted.begin(), predicted.end(), [&](double p) { return p < of_best; });
    if (faster < 3) ++order.best_in_top3;
  }
  order.tau = order.pairs > 0 ? sum / order.pairs : 0;
  return order;
}

}  // namespace weft::plan::tables
