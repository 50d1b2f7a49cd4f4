// One vector serves for a whole round, which needs one all-reduce:
//
//   message_        [ weights: u, then Δv               | squares | gaps | losses | rows ]
//   at first        u = w
//   visit()         u moves by this rank's rows
//   to_changes()    Δv_k = (u - w) / σ'                  |Δv_k|², sums of the sample
//   sum()           Δv of all ranks                      sums of all ranks
//
// All ranks get the same bits from the sum. So w, σ', γ, the estimate and the end are the same
// everywhere, without further messages. Only duals and the order of rows belong to a rank.
//
// Without l1, v and w are the same vector, and v_ is not used. One rank without l1 has u = v = w,
// and no message at all.
//
// A certificate costs a pass over the rows. The sampled estimate says when one is worth it. It is
// usually too large. calibration_ is the factor that the last certificate has measured.
#include "weft/linear/solve/cocoa.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/linear/data/sparse_vector.h"
#include "weft/linear/solve/internal/dense_vector.h"
#include "weft/linear/solve/internal/round_plan.h"

namespace weft::linear {
namespace {

// What a round's message holds behind Δv.
enum Extra : std::size_t { kSquares, kGaps, kLosses, kRows, kExtras };

class Cocoa {
 public:
  Cocoa(const RowProblem& problem, std::size_t weights, Ranks& ranks, const CocoaOptions& options)
      : problem_(problem),
        objective_(problem.objective),
        ranks_(ranks),
        options_(options),
        kappa_(objective_.l1 / objective_.l2),
        v_(weights),
        w_(weights),
        message_(weights + kExtras) {
    std::array<double, 2> sizes{static_cast<double>(problem.rows->size()),
                                static_cast<double>(problem.rows->entries.size())};
    ranks_.sum(sizes);
    n_ = sizes[0];
    WEFT_REQUIRE(n_ > 0, "the data has no rows");
    plan_ = make_plan(sizes[1]);
    sigma_ = first_sigma();
  }

  CocoaResult run() {
    const std::uint64_t before = ranks_.exchanged_bytes();
    Sdca local(problem_, n_, options_.seed + static_cast<std::uint64_t>(ranks_.rank()) * kRankSeed);
    CocoaResult result;
    while (!result.converged && passes_ < static_cast<double>(options_.stop.max_passes)) {
      Round round;
      round.sigma = sigma_;
      round.gamma = do_round(local);
      round.round = ++result.rounds;
      round.passes = passes_ = plan_.passes(result.rounds);
      if (result.rounds % plan_.rounds == 0) {
        round.estimate = take_estimate();
        if (wants_certificate(round.estimate)) {
          round.certificate = result.certificate = certify(local);
          result.converged = reached(options_.stop, result.certificate);
        }
      }
      round.exchanged_bytes = ranks_.exchanged_bytes() - before;
      round.seconds = seconds();
      if (options_.on_round) options_.on_round(round);
    }
    if (certified_at_ != passes_) result.certificate = certify(local);
    result.converged = reached(options_.stop, result.certificate);
    result.weights = std::move(w_);
    result.duals.assign(local.duals().begin(), local.duals().end());
    return result;
  }

 private:
  static constexpr std::uint64_t kRankSeed = 0x9e3779b97f4a7c15;  // Spreads the ranks' seeds.

  internal::RoundPlan make_plan(double entries) const {
    if (options_.local_passes > 0) return internal::plan_rounds(options_.local_passes);
    if (ranks_.size() == 1 && kappa_ == 0) return {};
    return internal::plan_rounds(
        std::min(1.0, internal::balanced_passes(static_cast<double>(v_.size()),
                                                entries / ranks_.size(), ranks_.in_memory())));
  }

  bool adds() const { return options_.aggregation == Aggregation::kAdding; }
  bool measures() const {
    return ranks_.size() > 1 && adds() && options_.sigma == Sigma::kMeasured &&
           options_.fixed_sigma == 0;
  }
  double first_sigma() const {
    if (options_.fixed_sigma > 0) return options_.fixed_sigma;
    return adds() ? ranks_.size() : 1;
  }

  // One round; returns γ.
  double do_round(Sdca& local) {
    const std::size_t rows = problem_.rows->size();
    const std::size_t count = plan_.begin(rows, place_ + 1) - plan_.begin(rows, place_);
    place_ = (place_ + 1) % plan_.rounds;
    if (ranks_.size() == 1 && kappa_ == 0 && sigma_ == 1) {  // u, v and w are the same
      local.visit(count, plan_.repeats, 1, w_);
      add_sample(local.take_sample());
      return 1;
    }
    const std::span<double> u(message_.data(), v_.size());
    std::copy(w_.begin(), w_.end(), u.begin());
    local.visit(count, plan_.repeats, sigma_, u);
    // u has moved σ' times as far as v (sdca.h).
    const double squares = internal::to_changes(u, w_, 1 / sigma_);
    const auto sample = local.take_sample();
    double* const extras = message_.data() + v_.size();
    extras[kSquares] = squares;
    extras[kGaps] = sample.gaps, extras[kLosses] = sample.losses, extras[kRows] = sample.rows;
    ranks_.sum(message_);
    add_sample({extras[kGaps], extras[kLosses], extras[kRows]});
    const double gamma = apply(u, extras[kSquares]);
    // The duals must stay those of v.
    if (gamma != 1) local.scale_changes(gamma);
    return gamma;
  }

  double apply(std::span<const double> changes, double parts) {
    double gamma = adds() ? 1.0 : 1.0 / ranks_.size();
    if (measures()) {
      const double whole = internal::squared_length(changes);
      const Step step = measured_step(whole, parts, sigma_, ranks_.size());
      gamma = step.gamma;
      sigma_ = step.next_sigma;
    }
    if (kappa_ == 0) {  // v and w are the same
      internal::add_scaled(w_, changes, gamma);
      return gamma;
    }
    internal::add_scaled(v_, changes, gamma);
    for (std::size_t j = 0; j < v_.size(); ++j) w_[j] = soft(v_[j], kappa_);
    return gamma;
  }

  void add_sample(const Sdca::Sample& sample) {
    sample_.gaps += sample.gaps, sample_.losses += sample.losses, sample_.rows += sample.rows;
  }

  // Estimate of the relative gap over the last pass.
  double take_estimate() {
    const auto sample = std::exchange(sample_, {});
    const double gap = sample.gaps / sample.rows;
    const double primal = sample.losses / sample.rows + regularizer(objective_, w_);
    return primal > 0 ? gap / primal : gap;
  }

  // An estimate is some passes old, so it is usually too large: the first certificate calibrates
  // it.
  bool wants_certificate(double estimate) {
    constexpr double kMaxPasses = 10, kFirst = 4;
    const double since = passes_ - certified_at_;
    if (options_.certificate_every > 0)
      return since >= static_cast<double>(options_.certificate_every);
    const StopRule& stop = options_.stop;
    const double aim = stop.absolute_gap > 0 ? INFINITY : stop.relative_gap;
    const double factor = calibration_ > 0 ? calibration_ : 1 / kFirst;
    estimate_ = estimate;
    // Also if the estimate is NaN: the certificate says so.
    return since >= kMaxPasses || !(estimate * factor > aim);
  }

  Certificate certify(const Sdca& local) {
    std::array<double, 2> sums{loss_sum(objective_.loss, *problem_.rows, problem_.targets, w_),
                               local.conjugates()};
    ranks_.sum(sums);
    double squares = 0;
    for (const double w : w_) squares += w * w;
    const Certificate found{sums[0] / n_ + regularizer(objective_, w_),
                            -sums[1] / n_ - objective_.l2 / 2 * squares};
    WEFT_REQUIRE(std::isfinite(found.primal) && std::isfinite(found.dual),
                 "the objective is not finite any more: sigma " + json_number(sigma_) +
                     " is too small for " + std::to_string(ranks_.size()) + " ranks");
    certified_at_ = passes_;
    if (estimate_ > 0) calibration_ = std::max(0.0, found.relative_gap()) / estimate_;
    return found;
  }

  double seconds() const { return seconds_since(start_); }

  RowProblem problem_;
  Objective objective_;
  Ranks& ranks_;
  CocoaOptions options_;
  double kappa_;  // l1 / l2
  double n_ = 0, sigma_ = 1, passes_ = 0;
  internal::RoundPlan plan_;
  std::int64_t place_ = 0;  // Next part of the pass.
  std::vector<double> v_, w_, message_;
  Sdca::Sample sample_;
  double certified_at_ = 0, calibration_ = 0, estimate_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

void check(const CocoaOptions& options) {
  check(options.stop);
  WEFT_REQUIRE(options.fixed_sigma >= 0 && std::isfinite(options.fixed_sigma),
               "sigma must be above 0");
  WEFT_REQUIRE(options.local_passes >= 0 && options.local_passes <= 1000,
               "local_passes must be from 0 to 1000");
  WEFT_REQUIRE(options.certificate_every >= 0, "certificate_every must be at least 0");
}

bool reached(const StopRule& rule, const Certificate& certificate) {
  return certificate.gap() <= rule.absolute_gap || certificate.relative_gap() <= rule.relative_gap;
}

void check(const StopRule& rule) {
  WEFT_REQUIRE(rule.relative_gap >= 0 && rule.absolute_gap >= 0, "a gap must be at least 0");
  WEFT_REQUIRE(rule.max_passes >= 1, "max_passes must be at least 1");
}

Step measured_step(double whole, double parts, double sigma, int ranks) {
  constexpr double kMargin = 1.05;
  if (!(parts > 0)) return {1, sigma};  // nothing changed
  const double ratio = whole / parts;
  return {std::min(1.0, sigma / ratio), std::clamp(kMargin * ratio, 1.0, double(ranks))};
}

CocoaResult cocoa(const RowProblem& problem, std::size_t weights, Ranks& ranks,
                  const CocoaOptions& options) {
  check(problem.objective);
  check(options);
  WEFT_REQUIRE(problem.objective.l2 > 0, "CoCoA by rows needs l2 above 0");
  return Cocoa(problem, weights, ranks, options).run();
}

}  // namespace weft::linear
