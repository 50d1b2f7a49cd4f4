// The end of a training step: checks and clips the gradients, then has each stage updated.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "weft/parallel/compose/internal/batch_runner.h"
#include "weft/parallel/compose/internal/composition.h"
#include "weft/parallel/compose/internal/model_times.h"
#include "weft/parallel/compose/internal/verification.h"

namespace weft::parallel::internal {

// See ParallelModel for the functions of the same name.
class OptimizerStep {
 public:
  // All must outlive it.
  OptimizerStep(Composition& composition, BatchRunner& batches, Verifier& verifier,
                ModelTimes& times)
      : c_(composition), batches_(batches), verifier_(verifier), times_(times) {}

  bool step();
  double grad_norm();
  const std::map<int, std::string>& not_finite() const { return not_finite_; }
  const std::optional<ParallelModel::GradientNoise>& gradient_noise() const { return noise_; }

 private:
  void await_gradients();
  bool counts(const Parameter& p) const;
  double norm_of_gradients();
  std::optional<ParallelModel::GradientNoise> measure_noise() const;
  bool all_finite();
  bool tell_ranks(bool finite_here);
  void skip();

  Composition& c_;
  BatchRunner& batches_;
  Verifier& verifier_;
  ModelTimes& times_;
  double norm_ = -1;                       // of the gradients of the last step; below 0: none
  std::map<int, std::string> not_finite_;  // see ParallelModel
  std::string own_not_finite_;  // parameter of this rank, in the whole model; empty: none
  std::optional<ParallelModel::GradientNoise> noise_;
};

}  // namespace weft::parallel::internal
