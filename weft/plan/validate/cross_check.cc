// Fits the two constants of a generation to a part of the cases, and tests them on the rest.
#include <algorithm>
#include <cmath>
#include <set>

#include "weft/plan/validate/validate.h"

namespace weft::plan {
namespace {

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

}  // namespace

std::vector<CrossCheck> cross_checks(const std::vector<TableReport>& tables) {
  std::vector<CrossCheck> checks;
  for (const Generation generation :
       {Generation::kVolta, Generation::kAmpere, Generation::kHopper}) {
    CaseList even, odd;
    std::set<std::string> names;
    std::size_t row = 0;
    const auto belongs = [&](const CaseResult& r) {
      return r.counts() && r.one.quantity == Quantity::kSeconds && r.generation == generation &&
             r.one.choice == Choice::kGiven;
    };
    for (const TableReport& table : tables) {
      for (const CaseResult& r : table.results) {
        if (!belongs(r)) continue;
        (row++ % 2 == 0 ? even : odd).push_back(&r.one);
        names.insert(table.table);
      }
    }
    if (even.size() < 3 || odd.size() < 3) continue;
    checks.push_back(check_of(generation, "every second row", even, odd));
    for (const std::string& left_out : names) {
      CaseList others, rest;
      for (const CaseList* list : {&even, &odd})
        for (const Case* one : *list) (one->table == left_out ? rest : others).push_back(one);
      if (others.size() >= 4) checks.push_back(check_of(generation, left_out, others, rest));
    }
  }
  return checks;
}

}  // namespace weft::plan
