#include "weft/linear/solve/sdca.h"

#include <limits>
#include <utility>

#include "weft/base/error.h"
#include "weft/linear/data/sparse_vector.h"
#include "weft/linear/solve/losses.h"

namespace weft::linear {

Sdca::Sdca(const RowProblem& problem, double n, std::uint64_t seed)
    : problem_(problem),
      scale_(1 / (problem.objective.l2 * n)),
      duals_(problem.rows->size()),
      order_(problem.rows->size(), seed) {
  WEFT_REQUIRE(problem.objective.l2 > 0, "SDCA needs l2 above 0");
  WEFT_REQUIRE(problem.targets.size() == problem.rows->size(), "one target for each row");
  WEFT_REQUIRE(problem.rows->size() < std::numeric_limits<std::uint32_t>::max(),
               "a rank can hold at most 2^32 - 2 rows; use more ranks");
  squares_.reserve(duals_.size());
  for (std::size_t i = 0; i < duals_.size(); ++i) squares_.push_back(squares(problem.rows->row(i)));
}

void Sdca::visit(std::size_t count, int repeats, double sigma, std::span<double> u) {
  WEFT_CHECK(count <= duals_.size(), "more visits than rows");
  if (count == 0) {
    visited_ = {};
    return;
  }
  if (next_ == duals_.size()) next_ = 0;
  if (next_ == 0) order_.make(passes_++);
  visited_ = std::span(order_.order()).subspan(next_, std::min(count, duals_.size() - next_));
  next_ += visited_.size();
  before_.resize(visited_.size());
  for (std::size_t k = 0; k < visited_.size(); ++k) before_[k] = duals_[visited_[k]];
  with_loss(problem_.objective.loss, [&](auto kind) {
    for (int repeat = 0; repeat < repeats; ++repeat) visit_rows(kind, visited_, sigma, u.data());
  });
}

template <class Kind>
void Sdca::visit_rows(Kind kind, std::span<const std::uint32_t> order, double sigma, double* u) {
  constexpr std::size_t kAhead = 4, kSampled = 8;
  const double scale = sigma * scale_;
  for (std::size_t k = 0; k < order.size(); ++k) {
    if (k + kAhead < order.size()) prefetch(problem_.rows->row(order[k + kAhead]));
    if (k + 2 * kAhead < order.size()) {  // what a visit needs besides the entries
      const std::size_t later = order[k + 2 * kAhead];
      __builtin_prefetch(problem_.rows->begins.data() + later);
      __builtin_prefetch(problem_.targets.data() + later);
      __builtin_prefetch(duals_.data() + later);
      __builtin_prefetch(squares_.data() + later);
    }
    const std::size_t i = order[k];
    const auto row = problem_.rows->row(i);
    const double y = problem_.targets[i], a = duals_[i], z = dot(row, u);
    if (k % kSampled == 0) {
      const double loss = kind.value(z, y);
      sample_.gaps += loss + kind.conjugate(a, y) + a * z;
      sample_.losses += loss;
      ++sample_.rows;
    }
    const double next = kind.step(z, a, y, scale * squares_[i]);
    if (next == a) continue;
    duals_[i] = next;
    add(scale * (next - a), row, u);
  }
}

void Sdca::scale_changes(double gamma) {
  for (std::size_t k = 0; k < visited_.size(); ++k) {
    double& dual = duals_[visited_[k]];
    dual = before_[k] + gamma * (dual - before_[k]);
  }
}

double Sdca::conjugates() const {
  return with_loss(problem_.objective.loss, [&](auto kind) {
    double sum = 0;
    for (std::size_t i = 0; i < duals_.size(); ++i)
      sum += kind.conjugate(duals_[i], problem_.targets[i]);
    return sum;
  });
}

Sdca::Sample Sdca::take_sample() { return std::exchange(sample_, {}); }

}  // namespace weft::linear
