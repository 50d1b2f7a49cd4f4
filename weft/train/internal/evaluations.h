// The evaluations of a run: when one is due, and the last one.
#pragma once

#include <cstdint>

#include "weft/train/internal/learner.h"
#include "weft/train/options.h"

namespace weft::train::internal {

class Evaluations {
 public:
  // `options` must outlive it.
  explicit Evaluations(const Options& options) : options_(options) {}

  // True within an epoch, by the number of steps.
  bool is_due(std::int64_t step) const {
    return options_.eval_steps > 0 && step % options_.eval_steps == 0;
  }
  // Evaluates the weights after this step. Collective.
  const Evaluation& evaluate(Learner& learner, std::int64_t step) {
    learner.model().wait_for_weights();
    last_ = learner.evaluate();
    step_ = step;
    return last_;
  }
  // The last one of this process.
  const Evaluation& last() const { return last_; }
  // Step of the last one of the run; -1: none.
  std::int64_t step() const { return step_; }
  // A resumed run has evaluated the weights after this step.
  void restore(std::int64_t step) { step_ = step; }

 private:
  const Options& options_;
  Evaluation last_;
  std::int64_t step_ = -1;
};

}  // namespace weft::train::internal
