// Predictions of a linear model, and how good they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/linear/data/sparse_rows.h"
#include "weft/linear/model/model.h"

namespace weft::linear {

struct Predictions {
  // The predicted class or number of each row.
  std::vector<double> labels;
  // Probability of each class, by (row, class). Empty unless requested.
  std::vector<double> probabilities;
  // Entries of features above Model::features. They count nothing.
  std::uint64_t unknown_entries = 0;
};

// Predicts rows whose columns are those of the data (index minus 1, kBiasColumn); the rows must
// have the model's bias (LibsvmOptions::bias). Columns that the model does not have count nothing.
// As LIBLINEAR does, two classes are decided by the sign of one score, more by the largest score.
// Throws Error(kInvalidArgument) for rows with another bias than the model's, also where only one
// of them has a bias, and if probabilities are requested and the model has none.
Predictions predict(const Model& model, const SparseRows& rows, bool probabilities = false);

// How predictions p compare with the labels y of the rows.
struct Quality {
  std::uint64_t rows = 0, correct = 0;
  double squared_errors = 0;  // Σ (p - y)²
  // Means of p and y.
  double mean_p = 0, mean_y = 0;
  // Σ (p - mean_p)², Σ (y - mean_y)² and Σ (p - mean_p)(y - mean_y).
  double pp = 0, yy = 0, py = 0;

  // Adds other rows, such as those of another rank (Chan, Golub, LeVeque 1983, "Algorithms for
  // computing the sample variance").
  void add(const Quality& other);

  double accuracy() const;
  double mean_squared_error() const;
  // Squared correlation coefficient, as liblinear-predict prints it. NaN for fewer than two
  // different labels or predictions.
  double squared_correlation() const;
};
Quality compare(const Predictions& predictions, std::span<const double> labels);

}  // namespace weft::linear
