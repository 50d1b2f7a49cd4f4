// Fits the two constants of a generation to a part of the cases, and tests them on the rest.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "bench/plan_tables/validate.h"

namespace weft::plan::tables {
namespace {

constexpr const char* kEverySecond = "every second row";

using CaseList = std::vector<const Case*>;

Calibration with(Generation generation, double matmul, double memory) {
  Calibration constants = calibration();
  Fitted& fitted = constants.fitted[static_cast<std::size_t>(generation)];
  fitted.matmul = matmul;
  fitted.memory = memory;
  return constants;
}

Errors errors_with(const CaseList& cases, const Calibration& constants) {
  std::vector<CaseResult> results;
  for (const Case* one : cases) results.push_back(predict_case(*one, constants));
  return errors_of(results, Quantity::kSeconds, true);
}

// The mean of the absolute errors, minimized over one constant by golden section, then the other,
// twice.
Fitted fit(Generation generation, const CaseList& cases) {
  Fitted best = calibration().of(generation);
  const auto cost = [&](double matmul, double memory) {
    return errors_with(cases, with(generation, matmul, memory)).mean;
  };
  constexpr double kGolden = 0.381966;
  for (int round = 0; round < 2; ++round) {
    for (const bool first : {true, false}) {
      double low = first ? 0.5 : 0.55, high = 1.0;
      const auto at = [&](double x) { return first ? cost(x, best.memory) : cost(best.matmul, x); };
      double a = low + kGolden * (high - low), b = high - kGolden * (high - low);
      double fa = at(a), fb = at(b);
      for (int i = 0; i < 6; ++i) {
        if (fa < fb) {
          high = b;
          b = a;
          fb = fa;
          fa = at(a = low + kGolden * (high - low));
        } else {
          low = a;
          a = b;
          fa = fb;
          fb = at(b = high - kGolden * (high - low));
        }
      }
      (first ? best.matmul : best.memory) = fa < fb ? a : b;
    }
  }
  return best;
}

CrossCheck check_of(Generation generation, const std::string& test, const CaseList& fit_to,
                    const CaseList& rest) {
  CrossCheck check{.generation = generation, .test = test};
  check.fitted = fit(generation, fit_to);
  const Calibration constants = with(generation, check.fitted.matmul, check.fitted.memory);
  check.fit = errors_with(fit_to, constants);
  check.rest = errors_with(rest, constants);
  check.shipped = errors_with(rest, calibration());
  return check;
}

constexpr Generation kGenerations[] = {Generation::kPascal, Generation::kVolta, Generation::kAmpere,
                                       Generation::kHopper, Generation::kBlackwell};
constexpr std::size_t kLeast = 4;  // Rows that two constants are fitted to.

// Cases of a generation whose times depend on its two constants.
CaseList cases_of(Generation generation, const std::vector<TableReport>& tables) {
  CaseList cases;
  for (const TableReport& table : tables) {
    for (const CaseResult& r : table.results) {
      const bool belongs = r.counts() && r.one.quantity == Quantity::kSeconds &&
                           r.generation == generation && r.one.choice == Choice::kGiven &&
                           !r.one.scenario.empty();
      if (belongs) cases.push_back(&r.one);
    }
  }
  return cases;
}

// Where no other table has rows of a generation, the constants of the one before it stand in (of
// the oldest, those of the one after it).
CrossCheck without_fit(Generation generation, const std::string& test, const CaseList& rest) {
  CrossCheck check{.generation = generation, .test = test};
  const auto at = std::find(std::begin(kGenerations), std::end(kGenerations), generation);
  check.fitted = calibration().of(at == std::begin(kGenerations) ? *(at + 1) : *(at - 1));
  check.rest = errors_with(rest, with(generation, check.fitted.matmul, check.fitted.memory));
  check.shipped = errors_with(rest, calibration());
  return check;
}

// Every second row of each table.
std::array<CaseList, 2> halves_of(const CaseList& all) {
  std::array<CaseList, 2> halves;
  std::map<std::string, std::size_t> seen;
  for (const Case* one : all) halves[seen[one->table]++ % 2].push_back(one);
  return halves;
}

// Mean error of both halves, each with constants that were fitted to the other one.
double halves_error(Generation generation, const CaseList& all) {
  const auto halves = halves_of(all);
  double sum = 0;
  for (const std::size_t i : {0U, 1U}) {
    if (halves[1 - i].size() < kLeast) return 0;
    const Fitted fitted = fit(generation, halves[1 - i]);
    const Errors rest = errors_with(halves[i], with(generation, fitted.matmul, fitted.memory));
    sum += rest.mean * rest.count;
  }
  return sum / static_cast<double>(all.size());
}

}  // namespace

std::vector<CrossCheck> cross_checks(const std::vector<TableReport>& tables) {
  std::vector<CrossCheck> checks;
  for (const Generation generation : kGenerations) {
    const CaseList all = cases_of(generation, tables);
    CaseList even, odd;
    std::set<std::string> names;
    for (const Case* one : all) {
      (even.size() == odd.size() ? even : odd).push_back(one);
      names.insert(one->table);
    }
    if (odd.size() >= kLeast) checks.push_back(check_of(generation, kEverySecond, even, odd));
    for (const std::string& left_out : names) {
      CaseList others, rest;
      for (const Case* one : all) (one->table == left_out ? rest : others).push_back(one);
      checks.push_back(others.size() >= kLeast ? check_of(generation, left_out, others, rest)
                                               : without_fit(generation, left_out, rest));
    }
  }
  return checks;
}

std::vector<LeftOut> left_out_checks(const std::vector<TableReport>& tables,
                                     const std::vector<CrossCheck>& checks) {
  std::vector<LeftOut> all;
  for (const Generation generation : kGenerations) {
    const CaseList cases = cases_of(generation, tables);
    if (cases.empty()) continue;
    LeftOut one{.generation = generation, .rows = static_cast<int>(cases.size())};
    one.fitted = cases.size() >= kLeast ? fit(generation, cases) : calibration().of(generation);
    one.fit = errors_with(cases, with(generation, one.fitted.matmul, one.fitted.memory)).mean;
    one.shipped = errors_with(cases, calibration()).mean;
    one.halves = halves_error(generation, cases);
    for (const CrossCheck& c : checks) {
      if (c.generation != generation || c.test == kEverySecond) continue;
      ++one.tables;
      one.left_out += c.rest.mean * c.rest.count / one.rows;
    }
    all.push_back(one);
  }
  return all;
}

}  // namespace weft::plan::tables
