// As cocoa.cc, with rows and columns exchanged: z_ (one number a row) is the same on all ranks, and
// w_ has this rank's columns alone.
//
//   once            targets of all rows to all ranks; each column to the rank that owns it
//   message_        [ rows: r, then Δz                  | squares ]
//   at first        r = φ'(z)
//   visits          r += σ' L x_j (change of w_j)
//   then            A_k Δw_k = (r - φ'(z)) / (σ' L)      |A_k Δw_k|²
//   sum()           Δz of all ranks                      sum of all ranks
//   at the end      w, by a sum of vectors that are 0 outside of a rank's columns
//
// All ranks get the same bits from the sums, and so the same z, σ', γ and end.
#include "weft/linear/solve/prox_cocoa.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "weft/base/deadline.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/linear/data/sparse_vector.h"
#include "weft/linear/data/transpose.h"
#include "weft/linear/solve/internal/round_plan.h"
#include "weft/linear/solve/losses.h"

namespace weft::linear {
namespace {

// The columns of this rank, and the targets of all rows.
struct Columns {
  ColumnShare share;
  SparseRows columns;
  std::vector<double> targets;
};

Columns exchange_columns(const RowProblem& problem, std::size_t weights, Ranks& ranks) {
  Columns mine;
  mine.share = {static_cast<std::uint32_t>(ranks.rank()), static_cast<std::uint32_t>(ranks.size())};
  std::uint64_t first = 0;
  int rank = 0;
  for (const std::string& part : ranks.gather(
           {reinterpret_cast<const char*>(problem.targets.data()), problem.targets.size_bytes()})) {
    if (rank++ == ranks.rank()) first = mine.targets.size();
    const std::size_t before = mine.targets.size();
    mine.targets.resize(before + part.size() / sizeof(double));
    std::memcpy(mine.targets.data() + before, part.data(), part.size());
  }
  WEFT_REQUIRE(!mine.targets.empty(), "the data has no rows");
  WEFT_REQUIRE(mine.targets.size() < std::numeric_limits<std::uint32_t>::max(),
               "l1 without l2 can train on at most 2^32 - 2 rows");
  auto packed = pack_columns(*problem.rows, static_cast<std::uint32_t>(first), ranks.size());
  mine.columns = unpack_columns(ranks.exchange(std::move(packed)),
                                mine.share.count(static_cast<std::uint32_t>(weights)));
  return mine;
}

template <class Kind>
class ProxCocoa {
 public:
  ProxCocoa(Columns mine, const RowProblem& problem, Ranks& ranks, const CocoaOptions& options)
      : objective_(problem.objective),
        ranks_(ranks),
        options_(options),
        mine_(std::move(mine)),
        n_(static_cast<double>(mine_.targets.size())),
        order_(mine_.columns.size(),
               options.seed + static_cast<std::uint64_t>(ranks.rank()) * 0x9e3779b97f4a7c15),
        w_(mine_.columns.size()),
        z_(mine_.targets.size()),
        slopes_(z_.size()),
        message_(z_.size() + 1) {
    for (std::size_t j = 0; j < w_.size(); ++j) squares_.push_back(squares(mine_.columns.row(j)));
    plan_ = make_plan();
    const bool adds = options.aggregation == Aggregation::kAdding;
    sigma_ = options.fixed_sigma > 0 ? options.fixed_sigma : adds ? ranks.size() : 1;
    measures_ = adds && options.sigma == Sigma::kMeasured && options.fixed_sigma == 0;
    gamma_ = adds ? 1.0 : 1.0 / ranks.size();
  }

  CocoaResult run(std::size_t weights) {
    const std::uint64_t before = ranks_.exchanged_bytes();
    CocoaResult result;
    const auto most = static_cast<double>(options_.stop.max_passes);
    const auto every = static_cast<double>(std::max<std::int64_t>(1, options_.certificate_every));
    double passes = 0, certified_at = 0;
    while (!result.converged && passes < most) {
      Round round;
      round.sigma = sigma_;
      round.gamma = do_round();
      round.round = ++result.rounds;
      passes = round.passes = passes_after(result.rounds);
      const bool is_whole = result.rounds % plan_.rounds == 0;
      if (is_whole && (passes - certified_at >= every || passes >= most)) {
        certified_at = passes;
        round.certificate = result.certificate = certify();
        result.converged = reached(options_.stop, result.certificate);
      }
      round.exchanged_bytes = ranks_.exchanged_bytes() - before;
      round.seconds = seconds();
      if (options_.on_round) options_.on_round(round);
    }
    result.weights.assign(weights, 0);
    for (std::uint32_t j = 0; j < w_.size(); ++j) result.weights[mine_.share.column(j)] = w_[j];
    ranks_.sum(result.weights);
    return result;
  }

 private:
  internal::RoundPlan make_plan() const {
    constexpr int kVisits = 5;
    if (options_.local_passes > 0) return internal::plan_rounds(options_.local_passes);
    std::array<double, 1> entries{static_cast<double>(mine_.columns.entries.size())};
    ranks_.max(entries);
    auto plan = internal::plan_rounds(std::min(
        1.0,
        internal::balanced_passes(static_cast<double>(z_.size()), entries[0], ranks_.in_memory())));
    plan.repeats = kVisits;
    return plan;
  }

  // The visits of a round count as one pass, unless local_passes asks for them.
  double passes_after(std::int64_t rounds) const {
    const internal::RoundPlan once{plan_.rounds, 1};
    return (options_.local_passes > 0 ? plan_ : once).passes(rounds);
  }

  // One round; returns γ.
  double do_round() {
    for (std::size_t i = 0; i < z_.size(); ++i)
      slopes_[i] = Kind::derivative(z_[i], mine_.targets[i]);
    const std::span<double> r(message_.data(), z_.size());
    std::copy(slopes_.begin(), slopes_.end(), r.begin());
    if (place_ == 0) order_.make(passes_++);
    const auto visited =
        std::span(order_.order())
            .subspan(plan_.begin(w_.size(), place_),
                     plan_.begin(w_.size(), place_ + 1) - plan_.begin(w_.size(), place_));
    place_ = (place_ + 1) % plan_.rounds;
    before_.clear();
    for (const std::uint32_t j : visited) before_.push_back(w_[j]);
    for (int visit = 0; visit < plan_.repeats; ++visit) visit_columns(visited, visit == 0, r);
    double parts = 0;
    for (std::size_t i = 0; i < r.size(); ++i) {
      r[i] = (r[i] - slopes_[i]) / (sigma_ * Kind::kCurvature);
      parts += r[i] * r[i];
    }
    message_.back() = parts;
    ranks_.sum(message_);
    return apply(visited);
  }

  void visit_columns(std::span<const std::uint32_t> visited, bool all, std::span<double> r) {
    const double curvature = sigma_ * Kind::kCurvature;
    for (std::size_t k = 0; k < visited.size(); ++k) {
      constexpr std::size_t kAhead = 2;
      if (k + kAhead < visited.size()) prefetch(mine_.columns.row(visited[k + kAhead]));
      const std::uint32_t j = visited[k];
      if (w_[j] == 0 && !all) continue;
      const auto column = mine_.columns.row(j);
      const double h = curvature * squares_[j] / n_;
      if (h == 0) continue;  // an empty column
      const double slope = dot(column, r.data()) / n_;
      const double next = soft(h * w_[j] - slope, objective_.l1) / (h + objective_.l2);
      if (next == w_[j]) continue;
      add(curvature * (next - w_[j]), column, r.data());
      w_[j] = next;
    }
  }

  double apply(std::span<const std::uint32_t> visited) {
    double gamma = gamma_;
    if (measures_ && ranks_.size() > 1) {
      double whole = 0;
      for (std::size_t i = 0; i < z_.size(); ++i) whole += message_[i] * message_[i];
      const Step step = measured_step(whole, message_.back(), sigma_, ranks_.size());
      gamma = step.gamma;
      sigma_ = step.next_sigma;
    }
    for (std::size_t i = 0; i < z_.size(); ++i) z_[i] += gamma * message_[i];
    // The weights must stay those of z.
    if (gamma == 1) return gamma;
    for (std::size_t k = 0; k < visited.size(); ++k)
      w_[visited[k]] = before_[k] + gamma * (w_[visited[k]] - before_[k]);
    return gamma;
  }

  Certificate certify() {
    double losses = 0;
    for (std::size_t i = 0; i < z_.size(); ++i) {
      losses += Kind::value(z_[i], mine_.targets[i]);
      slopes_[i] = Kind::derivative(z_[i], mine_.targets[i]);
    }
    std::array<double, 1> steepest{0};  // |x_j·φ'(z)| / n
    std::array<double, 2> sums{regularizer(objective_, w_), 0};
    for (std::size_t j = 0; j < w_.size(); ++j) {
      const double slope = std::abs(dot(mine_.columns.row(j), slopes_.data())) / n_;
      steepest[0] = std::max(steepest[0], slope);
      const double over = std::max(0.0, slope - objective_.l1);
      if (objective_.l2 > 0) sums[1] += over * over / (2 * objective_.l2);
    }
    ranks_.max(steepest);
    ranks_.sum(sums);
    // The conjugate of l1 alone is 0 up to l1, and infinite beyond: u is scaled until it is within.
    const bool scales = objective_.l2 == 0 && steepest[0] > objective_.l1;
    const double scale = scales ? objective_.l1 / steepest[0] : 1;
    double conjugates = 0;
    for (std::size_t i = 0; i < z_.size(); ++i)
      conjugates += Kind::conjugate(-scale * slopes_[i], mine_.targets[i]);
    const Certificate found{losses / n_ + sums[0], -conjugates / n_ - sums[1]};
    WEFT_REQUIRE(std::isfinite(found.primal) && std::isfinite(found.dual),
                 "the objective is not finite any more: sigma " + json_number(sigma_) +
                     " is too small for " + std::to_string(ranks_.size()) + " ranks");
    return found;
  }

  double seconds() const { return seconds_since(start_); }

  Objective objective_;
  Ranks& ranks_;
  CocoaOptions options_;
  Columns mine_;
  double n_;
  RowOrder order_;
  std::uint64_t passes_ = 0;
  internal::RoundPlan plan_;
  std::int64_t place_ = 0;  // Next part of the pass.
  double sigma_ = 1, gamma_ = 1;
  bool measures_ = false;
  std::vector<double> squares_, w_, before_;  // Of this rank's columns.
  std::vector<double> z_, slopes_, message_;  // Of all rows.
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

CocoaResult prox_cocoa(const RowProblem& problem, std::size_t weights, Ranks& ranks,
                       const CocoaOptions& options) {
  check(problem.objective);
  check(options);
  WEFT_REQUIRE(is_smooth(problem.objective.loss),
               "l1 without l2 needs a smooth loss: logistic, squared-hinge or squared");
  Columns mine = exchange_columns(problem, weights, ranks);
  return with_loss(problem.objective.loss, [&](auto kind) {
    return ProxCocoa<decltype(kind)>(std::move(mine), problem, ranks, options).run(weights);
  });
}

}  // namespace weft::linear
