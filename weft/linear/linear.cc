#include "weft/linear/linear.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "weft/base/caught/caught.h"
#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/linear/hogwild/hogwild.h"
#include "weft/linear/internal/classes.h"
#include "weft/linear/internal/group_ranks.h"
#include "weft/linear/internal/group_ring.h"
#include "weft/linear/solve/prox_cocoa.h"
#include "weft/observe/memory.h"

namespace weft::linear {
namespace {

using internal::GroupPlace;
using internal::GroupRanks;

// Ids for the columns of all ranks' rows. Collective.
ColumnMap map_columns(const SparseRows& rows, double bias, Ranks& ranks) {
  std::array<double, 1> columns{static_cast<double>(count_columns(rows))};
  std::array<double, 1> entries{static_cast<double>(rows.entries.size())};
  ranks.max(columns);
  ranks.sum(entries);
  const auto count = static_cast<std::uint32_t>(columns[0]);
  ColumnMap map;
  if (ColumnMap::is_dense(count, static_cast<std::uint64_t>(entries[0]))) {
    map = ColumnMap::dense(count);
  } else {
    const auto mine = used_columns(rows);
    std::vector<std::uint32_t> used;
    for (const std::string& bytes : ranks.gather(
             {reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(mine[0])})) {
      const std::size_t before = used.size();
      used.resize(before + bytes.size() / sizeof(used[0]));
      std::memcpy(used.data() + before, bytes.data(), bytes.size());
    }
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    map = ColumnMap::sparse(std::move(used));
  }
  if (bias >= 0) map.add_bias();
  return map;
}

// Numbers are finite, columns ascend, and every row ends with the constant feature, or none has it.
void check_rows(const SparseRows& rows, double bias) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto row = rows.row(i);
    WEFT_REQUIRE(std::isfinite(rows.labels[i]),
                 "row " + std::to_string(i) + ": its label is not a finite number");
    for (const Entry& entry : row) {
      WEFT_REQUIRE(std::isfinite(entry.value),
                   "row " + std::to_string(i) + ": the value in column " +
                       std::to_string(entry.column) + " is not a finite number");
    }
    for (std::size_t k = 1; k < row.size(); ++k) {
      WEFT_REQUIRE(row[k - 1].column < row[k].column,
                   "row " + std::to_string(i) + ": the columns do not ascend");
    }
    const bool has_bias = !row.empty() && row.back().column == kBiasColumn;
    WEFT_REQUIRE(bias >= 0 || !has_bias, "row " + std::to_string(i) +
                                             " has a bias; set TrainOptions::bias to that of " +
                                             "LibsvmOptions");
    WEFT_REQUIRE(bias < 0 || (has_bias && row.back().value == static_cast<float>(bias)),
                 "row " + std::to_string(i) + " does not have the bias " + json_number(bias) +
                     " of TrainOptions; read the rows with LibsvmOptions::bias");
  }
}

bool by_columns(const TrainOptions& options) {
  if (options.division != Division::kAuto) return options.division == Division::kColumns;
  const Objective& objective = options.objective;
  return objective.l1 > 0 && (is_smooth(objective.loss) || objective.l2 == 0);
}

class Training {
 public:
  Training(const Group& group, SparseRows rows, const TrainOptions& options)
      : group_(group), ranks_(group), rows_(std::move(rows)), options_(options) {
    internal::together(ranks_, [&] { check_rows(rows_, options_.bias); });
    model_.columns = map_columns(rows_, options_.bias, ranks_);
    std::array<double, 1> features{static_cast<double>(count_columns(rows_))};
    ranks_.max(features);
    model_.features = static_cast<std::uint32_t>(features[0]);
    model_.bias = options_.bias;
    model_.solver = solver_name(options_.objective);
    if (options_.bias >= 0 || model_.columns.size() != model_.features)
      model_.columns.rename(rows_);
    if (is_classifier(options_.objective.loss))
      model_.labels = internal::find_classes(rows_.labels, options_.max_classes, ranks_);
  }

  Trained run() {
    Trained trained;
    const std::size_t outputs = model_.outputs();
    model_.weights.assign(model_.columns.size() * outputs, 0);
    for (std::size_t output = 0; output < outputs; ++output) {
      std::vector<double> targets = rows_.labels;
      Outcome outcome;
      if (!model_.labels.empty()) {
        outcome.of_class = model_.labels[output];
        targets = internal::targets_of(rows_.labels, outcome.of_class);
      }
      const auto weights = solve(targets, output, outcome);
      for (std::size_t id = 0; id < weights.size(); ++id)
        model_.weights[id * outputs + output] = weights[id];
      trained.outcomes.push_back(outcome);
    }
    trained.model = std::move(model_);
    trained.exchanged_bytes = ranks_.exchanged_bytes();
    return trained;
  }

 private:
  std::vector<double> solve(const std::vector<double>& targets, std::size_t output,
                            Outcome& outcome) {
    const RowProblem problem{&rows_, targets, options_.objective};
    return options_.rule == Rule::kHogwild ? run_hogwild(problem, output, outcome)
                                           : run_cocoa(problem, output, outcome);
  }

  std::vector<double> run_cocoa(const RowProblem& problem, std::size_t output, Outcome& outcome) {
    CocoaOptions with = options_.cocoa;
    with.aggregation =
        options_.rule == Rule::kCocoa ? Aggregation::kAveraging : Aggregation::kAdding;
    with.on_round = [&](const Round& round) {
      report({.output = output, .outputs = model_.outputs(), .round = round, .epoch = {}});
    };
    const std::size_t weights = model_.columns.size();
    auto result = by_columns(options_) ? prox_cocoa(problem, weights, ranks_, with)
                                       : cocoa(problem, weights, ranks_, with);
    outcome.objective = result.certificate.primal;
    outcome.certificate = result.certificate;
    outcome.converged = result.converged;
    outcome.rounds = result.rounds;
    return std::move(result.weights);
  }

  std::vector<double> run_hogwild(const RowProblem& problem, std::size_t output, Outcome& outcome) {
    HogwildOptions with = options_.hogwild;
    if (options_.on_report) {
      with.on_epoch = [&](const Epoch& epoch) {
        report({.output = output, .outputs = model_.outputs(), .round = {}, .epoch = epoch});
      };
    }
    const std::size_t weights = model_.columns.size();
    if (place_)
      place_->reset(ranks_);
    else
      place_.emplace(group_, ranks_, weights, with);
    auto result = hogwild(problem, weights, ranks_, place_->place(), with);
    outcome.objective = result.objective;
    outcome.rounds = with.epochs;
    return std::move(result.weights);
  }

  void report(const Report& what) const {
    if (options_.on_report) options_.on_report(what);
  }

  Group group_;
  GroupRanks ranks_;
  SparseRows rows_;
  TrainOptions options_;
  Model model_;
  std::optional<GroupPlace> place_;
};

}  // namespace

namespace {

// In bytes; 0 if it has none, as a pipe.
std::uint64_t size_of(const std::string& path) {
  std::error_code none;
  const std::uintmax_t size = std::filesystem::file_size(path, none);
  return none ? 0 : size;
}

// Ranks divide a file by its size, so all of them must have the same one. Collective.
void expect_one_size(const std::string& path, std::uint64_t size, Ranks& ranks) {
  std::vector<double> sizes(static_cast<std::size_t>(ranks.size()));
  sizes[static_cast<std::size_t>(ranks.rank())] = static_cast<double>(size);
  ranks.sum(sizes);
  for (std::size_t rank = 1; rank < sizes.size(); ++rank) {
    if (sizes[rank] == sizes[0]) continue;
    throw Error(Errc::kInvalidArgument,
                path + " has " + std::to_string(static_cast<std::uint64_t>(sizes[0])) +
                    " bytes on rank 0 and " +
                    std::to_string(static_cast<std::uint64_t>(sizes[rank])) + " on rank " +
                    std::to_string(rank) + "; give all hosts the same file");
  }
}

}  // namespace

SparseRows load(const std::string& path, const Group& group, LibsvmOptions options) {
  GroupRanks ranks(group);
  options.rank = group.rank();
  options.world = group.size();
  if (options.max_bytes == 0) {
    const auto here = group.host_ranks().ranks.size();
    options.max_bytes = observe::machine_memory().available / std::max<std::size_t>(1, here);
  }
  SparseRows rows;
  const std::uint64_t size = size_of(path);
  expect_one_size(path, size, ranks);
  internal::together(ranks, [&] {
    rows = read_libsvm(path, options);
    if (size_of(path) != size) throw Error(Errc::kCorrupt, path + " changed while it was read");
  });
  std::array<double, 1> count{static_cast<double>(rows.size())};
  ranks.sum(count);
  if (count[0] == 0) throw Error(Errc::kCorrupt, path + " has no rows");
  return rows;
}

Rule parse_rule(std::string_view name) {
  if (name == "cocoa+") return Rule::kCocoaPlus;
  if (name == "cocoa") return Rule::kCocoa;
  if (name == "hogwild") return Rule::kHogwild;
  throw Error(Errc::kInvalidArgument,
              "no rule \"" + std::string(name) + "\"; there are cocoa+, cocoa and hogwild");
}

Division parse_division(std::string_view name) {
  if (name == "auto") return Division::kAuto;
  if (name == "rows") return Division::kRows;
  if (name == "columns") return Division::kColumns;
  throw Error(Errc::kInvalidArgument,
              "no division \"" + std::string(name) + "\"; there are auto, rows and columns");
}

void check(const TrainOptions& options) {
  check(options.objective);
  check(options.cocoa);
  if (options.rule == Rule::kHogwild) {
    check(options.objective, options.hogwild);
    WEFT_REQUIRE(options.division != Division::kColumns,
                 "hogwild does not support a division by columns");
    return;
  }
  const bool smooth = is_smooth(options.objective.loss);
  WEFT_REQUIRE(options.division != Division::kColumns || smooth,
               "a division by columns does not support hinge");
  WEFT_REQUIRE(options.division != Division::kRows || options.objective.l2 > 0,
               "a division by rows needs l2 above 0; use columns");
  WEFT_REQUIRE(options.objective.l2 > 0 || smooth,
               "l1 without l2 needs a smooth loss: logistic, squared-hinge or squared");
}

Trained train(const Group& group, SparseRows rows, const TrainOptions& options) {
  check(options);
  const auto start = std::chrono::steady_clock::now();
  // An exception of on_report may be one of all ranks. Missing memory or threads are of this one.
  const auto tell = [&](const Error& why) {
    if (why.code() == Errc::kUnavailable) group.abort(why);
  };
  Trained trained = run_and_tell([&] { return Training(group, std::move(rows), options).run(); },
                                 tell, {"linear", group.rank()});
  trained.seconds = seconds_since(start);
  return trained;
}

}  // namespace weft::linear
