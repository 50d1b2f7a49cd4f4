// Linear models over the ranks of a group: logistic regression, support vector machines, ridge,
// lasso and elastic net on sparse data.
//
//   auto world = weft::init();
//   auto rows = linear::load("train.svm", world);                  // each rank reads its part
//   auto trained = linear::train(world, std::move(rows), {.objective = {.l2 = 1e-5}});
//   if (world.rank() == 0) linear::write_model(trained.model, "model");
//
// Ranks hold different rows and send one number for each weight a round, whatever the number of
// rows is. The objective and its losses are in objective.h, the rules in cocoa.h, prox_cocoa.h and
// hogwild.h, the page in docs/linear-models.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/comm/group.h"
#include "weft/linear/data/libsvm.h"
#include "weft/linear/hogwild/hogwild_options.h"
#include "weft/linear/model/model.h"
#include "weft/linear/solve/cocoa_options.h"
#include "weft/linear/solve/objective.h"

namespace weft::linear {

// Reads this rank's part of a LIBSVM file (libsvm.h; options.rank and world are set here). The file
// must be on each host under this path. If options.max_bytes is 0, a rank takes at most its share
// of the machine's free memory. Collective; all ranks throw the same error, as read_libsvm(), and
// Error(kCorrupt) for a file without rows.
SparseRows load(const std::string& path, const Group& group, LibsvmOptions options = {});

// How ranks work together.
enum class Rule { kCocoaPlus, kCocoa, kHogwild };
// "cocoa+", "cocoa" or "hogwild". Throws Error(kInvalidArgument), naming these.
Rule parse_rule(std::string_view name);

// How CoCoA divides the data. kAuto: by columns if there is an l1 and the loss is smooth, else by
// rows.
enum class Division { kAuto, kRows, kColumns };
// "auto", "rows" or "columns". Throws Error(kInvalidArgument), naming these.
Division parse_division(std::string_view name);

// Something to show: a round of CoCoA or an epoch of Hogwild!.
struct Report {
  std::size_t output = 0, outputs = 1;  // The one-vs-rest problem; 0 of 1 for two classes.
  std::optional<Round> round;
  std::optional<Epoch> epoch;
};

struct TrainOptions {
  Objective objective;
  Rule rule = Rule::kCocoaPlus;
  Division division = Division::kAuto;
  // on_round and on_epoch are not used, and `rule` decides cocoa.aggregation.
  CocoaOptions cocoa;
  HogwildOptions hogwild;
  // The constant feature that the rows have: the same number as LibsvmOptions::bias. Below 0: none.
  double bias = -1;
  // Most classes of a classifier. Each needs its own weights and training.
  std::size_t max_classes = 1000;
  std::function<void(const Report&)> on_report;  // Called on every rank.
};

// Throws Error(kInvalidArgument) for options that train() does not support, whatever the data are:
// values out of range, and a division or l1 that the rule or the loss does not support.
void check(const TrainOptions& options);

// The outcome of one one-vs-rest problem, or of the only problem.
struct Outcome {
  int of_class = 0;  // For classifiers.
  double objective = 0;
  std::optional<Certificate> certificate;  // Not of Hogwild!.
  bool converged = false;                  // The certificate meets the stop rule.
  std::int64_t rounds = 0;                 // Rounds of CoCoA, epochs of Hogwild!.
};

struct Trained {
  Model model;
  std::vector<Outcome> outcomes;
  double seconds = 0;  // Of this call.
  std::uint64_t exchanged_bytes = 0;
};

// Trains on the rows of all ranks. A classifier's labels are ints: two classes make one problem,
// more make one for each class, one after the other (one-vs-rest). Collective: all ranks pass equal
// options. Every rank gets the same model. Throws as check(), cocoa(), prox_cocoa() and hogwild(),
// and what the group throws. Throws Error(kInvalidArgument) for rows with another bias than the
// options', for columns that do not ascend, and for labels that are not classes. So it does for one
// class only, and for more than max_classes.
Trained train(const Group& group, SparseRows rows, const TrainOptions& options);

}  // namespace weft::linear
