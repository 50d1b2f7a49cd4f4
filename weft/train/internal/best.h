// Compares the evaluations of a run: which weights are the best so far, and whether it is time to
// end training because evaluations no longer improve.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/train/options.h"

namespace weft::train {
struct Evaluation;
}

namespace weft::train::internal {

// The checkpoint of the best evaluation, in <run>/best.json:
// {"step": 938, "metric": "accuracy", "value": 0.93, "checkpoint": "ckpt/step-00000938"}.
struct BestMark {
  std::int64_t step = -1;  // -1: there is none
  std::string metric;
  double value = 0;
};

// All ranks have the same evaluations, so they give the same answers without communication.
class Best {
 public:
  struct State {
    std::int64_t step = -1;
    double value = 0;
    std::int64_t since = 0;  // evaluations in a row that were not better
    // The metric, and its direction: "min" or "max". Empty in checkpoints of older versions.
    std::string metric = {}, is = {};
  };

  // True if options compare evaluations at all.
  static bool is_on(const Options& options) { return options.keep_best || options.patience > 0; }
  // Throws Error(kBadConfig) if the options need what a task with these metrics, or without test
  // data, does not have.
  static void check(const Options& options, const std::vector<std::string>& metrics,
                    bool has_test_data);

  explicit Best(const Options& options);

  // Returns true if this evaluation is the best so far, which NaN never is.
  bool add(const Evaluation& evaluation, std::int64_t step);
  // True after `patience` evaluations in a row without a better one.
  bool is_over() const { return patience_ > 0 && state_.since >= patience_; }
  BestMark mark() const { return {state_.step, metric_, state_.value}; }
  State state() const;
  // Returns false, and starts anew, if the state is of another metric or direction.
  bool restore(const State& state);

 private:
  const std::string metric_;
  const bool smaller_;
  const double least_;
  const std::int64_t patience_;
  State state_;
};

// Replaces <run>/best.json. `checkpoint`: its folder. A write error is a warning.
void write_best(const std::string& run, const BestMark& mark, const std::string& checkpoint);
// Step of the checkpoint that best.json names; -1 if there is no such file that can be read.
std::int64_t named_best(const std::string& run);
// Folder of the best checkpoint of a run. Throws Error(kInvalidArgument) if it has none.
std::string best_checkpoint(const std::string& run);

}  // namespace weft::train::internal
