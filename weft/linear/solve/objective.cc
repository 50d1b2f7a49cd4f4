#include "weft/linear/solve/objective.h"

#include <array>
#include <cmath>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/linear/data/sparse_vector.h"
#include "weft/linear/solve/losses.h"

namespace weft::linear {
namespace {

constexpr std::array<std::pair<Loss, std::string_view>, 4> kNames{
    {{Loss::kLogistic, "logistic"},
     {Loss::kHinge, "hinge"},
     {Loss::kSquaredHinge, "squared-hinge"},
     {Loss::kSquared, "squared"}}};

}  // namespace

Loss parse_loss(std::string_view name) {
  for (const auto& [loss, its_name] : kNames) {
    if (name == its_name) return loss;
  }
  throw Error(Errc::kInvalidArgument,
              "no loss \"" + std::string(name) +
                  "\"; there are logistic, hinge, squared-hinge and squared");
}

std::string to_string(Loss loss) {
  return std::string(kNames[static_cast<std::size_t>(loss)].second);
}

bool is_classifier(Loss loss) { return loss != Loss::kSquared; }
bool is_smooth(Loss loss) { return loss != Loss::kHinge; }

void check(const Objective& objective) {
  for (const auto& [name, value] : {std::pair("l2", objective.l2), {"l1", objective.l1}}) {
    WEFT_REQUIRE(std::isfinite(value), std::string(name) + " must be a finite number");
    WEFT_REQUIRE(value >= 0,
                 std::string(name) + " is " + json_number(value) + "; it must be at least 0");
  }
  WEFT_REQUIRE(objective.l2 > 0 || objective.l1 > 0,
               "l2 and l1 are 0; the solvers need a regularizer, so set one of them above 0");
}

double loss_sum(Loss loss, const SparseRows& rows, std::span<const double> targets,
                std::span<const double> weights) {
  return with_loss(loss, [&](auto kind) {
    double sum = 0;
    for (std::size_t i = 0; i < rows.size(); ++i)
      sum += kind.value(dot(rows.row(i), weights.data()), targets[i]);
    return sum;
  });
}

double regularizer(const Objective& objective, std::span<const double> weights) {
  double squares = 0, sizes = 0;
  for (const double w : weights) squares += w * w, sizes += std::abs(w);
  return objective.l2 / 2 * squares + objective.l1 * sizes;
}

}  // namespace weft::linear
