// Reports as Markdown.
#include <cstdio>
#include <map>
#include <sstream>

#include "bench/plan_tables/validate.h"

namespace weft::plan::tables {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string decimals(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// Cells of errors; empty ones if there is no case.
std::string cells(const Errors& e) {
  if (e.count == 0) return " | | |";
  return " " + percent(e.median) + " | " + percent(e.mean) + " | " + percent(e.worst) + " |";
}

bool has(const TableReport& table, Quantity quantity) {
  return errors_of(table.results, quantity, true).count > 0;
}

void times(std::ostringstream& out, const std::vector<TableReport>& tables) {
  out << "### Step times\n\n"
         "| table | cases | exceptions | median | mean | worst | with exceptions: median | mean | "
         "worst |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const TableReport& t : tables) {
    const Quantity quantity = has(t, Quantity::kSeconds) ? Quantity::kSeconds : Quantity::kRatio;
    if (!has(t, quantity)) continue;
    const Errors some = errors_of(t.results, quantity, false),
                 all = errors_of(t.results, quantity, true);
    out << "| " << t.table << " | " << some.count << " | " << all.count - some.count << " |"
        << cells(some) << cells(all) << '\n';
  }
}

void memory(std::ostringstream& out, const std::vector<TableReport>& tables) {
  out << "\n### Memory\n\n"
         "| table | cases | exceptions | median | mean | worst | out of memory: right | of |\n"
         "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const TableReport& t : tables) {
    const Errors some = errors_of(t.results, Quantity::kMemory, false),
                 all = errors_of(t.results, Quantity::kMemory, true),
                 fits = errors_of(t.results, Quantity::kFits, false);
    if (all.count == 0 && fits.count == 0) continue;
    out << "| " << t.table << " | " << some.count << " | " << all.count - some.count << " |"
        << cells(some);
    if (fits.count > 0) {
      out << ' ' << fits.count - static_cast<int>(fits.mean * fits.count + 0.5) << " | "
          << fits.count << " |\n";
    } else {
      out << " | |\n";
    }
  }
  out << "\n| table of formulas | figures | right to the last digit |\n| --- | --- | --- |\n";
  for (const TableReport& t : tables) {
    const Errors e = errors_of(t.results, Quantity::kFormula, false);
    if (e.count == 0) continue;
    out << "| " << t.table << " | " << e.count << " | "
        << e.count - static_cast<int>(e.mean * e.count + 0.5) << " |\n";
  }
}

void order(std::ostringstream& out, const std::vector<TableReport>& tables) {
  out << "\n### Order of layouts\n\n"
         "| table | groups | pairs | Kendall's tau | groups whose best is in the top 3 |\n"
         "| --- | --- | --- | --- | --- |\n";
  for (const TableReport& t : tables) {
    const Order o = order_of(t.results);
    if (o.groups == 0) continue;
    out << "| " << t.table << " | " << o.groups << " | " << o.pairs << " | " << decimals(o.tau, 2)
        << " | " << o.best_in_top3 << " |\n";
  }
}

void exceptions(std::ostringstream& out, const std::vector<TableReport>& tables) {
  out << "\n### Exceptions\n\n| table | cases | reason |\n| --- | --- | --- |\n";
  for (const TableReport& t : tables) {
    std::map<std::string, int> reasons;
    for (const CaseResult& r : t.results) {
      if (!r.one.exception.empty()) ++reasons[r.one.exception];
      if (!r.failure.empty()) ++reasons["no prediction: " + r.failure];
    }
    for (const auto& [reason, count] : reasons)
      out << "| " << t.table << " | " << count << " | " << reason << " |\n";
  }
  out << "\n### Rows without a prediction\n\n| table | rows | reason |\n| --- | --- | --- |\n";
  for (const TableReport& t : tables)
    for (const Skipped& s : t.skipped)
      out << "| " << s.table << " | " << s.rows << " | " << s.reason << " |\n";
}

void checks_of(std::ostringstream& out, const std::vector<CrossCheck>& checks) {
  if (checks.empty()) return;
  out << "\n### Against overfitting\n\n"
         "The two constants of a generation, fitted to some rows, tested on the others. Where no "
         "other table\nhas four rows of a generation, the constants of a neighboring one stand "
         "in.\n\n"
         "| generation | tested on | rows | products | memory | mean error on the fit | mean error "
         "on the test | with the shipped constants |\n"
         "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const CrossCheck& c : checks) {
    out << "| " << to_string(c.generation) << " | " << c.test << " | " << c.rest.count << " | "
        << decimals(c.fitted.matmul, 2) << " | " << decimals(c.fitted.memory, 2) << " | "
        << percent(c.fit.mean) << " | " << percent(c.rest.mean) << " | " << percent(c.shipped.mean)
        << " |\n";
  }
}

void generations(std::ostringstream& out, const std::vector<LeftOut>& left_out) {
  if (left_out.empty()) return;
  out << "\n### Rows and tables that were left out\n\n"
         "Mean errors of step times. \"Rows left out\": each table is divided into two halves, of "
         "every\nsecond row. Each half is predicted with constants that were fitted to the "
         "other "
         "halves.\n\"Tables left out\": each row is predicted with constants that were "
         "fitted to the other tables of\nits generation. A generation of one table takes the "
         "constants of a neighboring one.\n\n"
         "| generation | tables | rows | shipped constants | fitted to all rows | rows left out | "
         "tables left out |\n"
         "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const LeftOut& one : left_out) {
    out << "| " << to_string(one.generation) << " | " << one.tables << " | " << one.rows << " | "
        << percent(one.shipped) << " | " << percent(one.fit) << " | " << percent(one.halves)
        << " | " << percent(one.left_out) << " |\n";
  }
}

// All rows with times, collectives included.
void by_generation(std::ostringstream& out, const std::vector<TableReport>& tables) {
  std::map<Generation, std::map<std::string, std::vector<CaseResult>>> all;
  for (const TableReport& t : tables) {
    for (const CaseResult& r : t.results) {
      if (r.one.quantity == Quantity::kSeconds && r.counts())
        all[r.generation][t.table].push_back(r);
    }
  }
  out << "\n### Step times by generation\n\n"
         "| generation | table | cases | median | mean | worst |\n"
         "| --- | --- | --- | --- | --- | --- |\n";
  for (const auto& [generation, lists] : all) {
    std::vector<CaseResult> together;
    const auto line = [&](const std::string& name, const std::vector<CaseResult>& results) {
      const Errors e = errors_of(results, Quantity::kSeconds, false);
      out << "| " << to_string(generation) << " | " << name << " | " << e.count << " |" << cells(e)
          << '\n';
    };
    for (const auto& [table, results] : lists) {
      line(table, results);
      together.insert(together.end(), results.begin(), results.end());
    }
    line("all", together);
  }
}

}  // namespace

std::string to_markdown(const std::vector<TableReport>& tables,
                        const std::vector<CrossCheck>& checks,
                        const std::vector<LeftOut>& left_out) {
  std::ostringstream out;
  times(out, tables);
  by_generation(out, tables);
  generations(out, left_out);
  memory(out, tables);
  order(out, tables);
  exceptions(out, tables);
  checks_of(out, checks);
  return out.str();
}

}  // namespace weft::plan::tables
