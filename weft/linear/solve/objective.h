// The objective of a linear model, and its losses:
//
//   P(w) = (1/n) Σ φ(x_i·w, y_i) + l2/2 |w|² + l1 |w|₁
//
//   loss            φ(z, y)                  targets y   also called
//   logistic        log(1 + exp(-y z))       1, -1       logistic regression
//   hinge           max(0, 1 - y z)          1, -1       support vector machine
//   squared hinge   max(0, 1 - y z)²         1, -1       L2-loss support vector machine
//   squared         (z - y)² / 2             any         ridge, lasso, elastic net
//
// The parameters of other libraries for n rows:
//   LIBLINEAR        l2 = 1 / (C n)
//   scikit-learn     Lasso and ElasticNet: l1 = alpha l1_ratio, l2 = alpha (1 - l1_ratio)
//                    Ridge: l2 = alpha / n; LogisticRegression, LinearSVC: l2 = 1 / (C n)
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "weft/linear/data/sparse_rows.h"

namespace weft::linear {

enum class Loss { kLogistic, kHinge, kSquaredHinge, kSquared };

// "logistic", "hinge", "squared-hinge" or "squared". Throws Error(kInvalidArgument), naming these,
// for any other name.
Loss parse_loss(std::string_view name);
std::string to_string(Loss loss);
// True if the targets are classes.
bool is_classifier(Loss loss);
// True if the loss has a continuous derivative: all but hinge.
bool is_smooth(Loss loss);

struct Objective {
  Loss loss = Loss::kLogistic;
  double l2 = 1e-5, l1 = 0;
};

// Throws Error(kInvalidArgument) if a regularizer is negative or not finite, and if both are 0.
void check(const Objective& objective);

// Σ φ(x_i·w, y_i) over these rows. Columns are indices of `weights`.
double loss_sum(Loss loss, const SparseRows& rows, std::span<const double> targets,
                std::span<const double> weights);

// l2/2 |w|² + l1 |w|₁.
double regularizer(const Objective& objective, std::span<const double> weights);

}  // namespace weft::linear
