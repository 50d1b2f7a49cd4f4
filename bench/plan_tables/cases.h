// Published rows as cases: a scenario and what was measured.
#pragma once

#include <string>
#include <vector>

#include "bench/plan_tables/csv.h"
#include "weft/plan/cluster/cluster.h"

namespace weft::plan::tables {

enum class Quantity : std::uint8_t {
  kSeconds,  // Of a step, or of a collective.
  kMemory,   // Bytes of the fullest device.
  kFits,     // 1 or 0.
  kFormula,  // A printed figure: right within one unit of its last digit.
  kRatio     // Throughput relative to another row of its group.
};

// How the layout of a row is found where the row does not name it.
enum class Choice : std::uint8_t {
  kGiven,
  kWithinOperators,  // The best layout without pipeline stages.
  kAny,              // The best layout of all.
  kStages            // The best layout with the number of stages that the row names.
};

struct Case {
  std::string table, label;
  std::string group;     // Rows of a group are compared in their order; empty: in none.
  std::string scenario;  // JSON for parse_scenario(); empty: `predicted` is the prediction.
  double predicted = 0;
  Generation generation = Generation::kOther;  // Of `predicted`; scenarios have their cluster's.
  std::string unit;  // kRatio: JSON of the scenario that the throughput is relative to.
  Quantity quantity = Quantity::kSeconds;
  double measured = 0;
  double digit = 0;  // kFormula: unit of the last digit.
  Choice choice = Choice::kGiven;
  std::string exception;  // Reason why the row is outside of what the model describes.
};

struct Skipped {
  std::string table;
  int rows = 0;
  std::string reason;
};

struct Cases {
  std::vector<Case> cases;
  std::vector<Skipped> skipped;
};

// Cases of one table; of an unknown one, none, and a skipped entry. Throws Error(kCorrupt) for
// fields that are no numbers.
Cases cases_of(const CsvTable& table);

}  // namespace weft::plan::tables
