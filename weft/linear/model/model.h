// Linear models, and LIBLINEAR's model files.
//
// A model that weft trains is written in LIBLINEAR's text format, so liblinear-predict and other
// programs read it. What the format cannot hold, the regularizers and the certificate of the
// training, is not written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weft/linear/data/column_map.h"
#include "weft/linear/solve/objective.h"

namespace weft::linear {

struct Model {
  // LIBLINEAR's name of the solver, which tells how to predict: "L2R_LR", "L2R_L2LOSS_SVR", …
  std::string solver = "L2R_LR";
  // Classes of a classifier. Empty: a regression. ONECLASS_SVM has 1 (like the training data) and
  // -1.
  std::vector<int> labels;
  // Largest feature index, counted from 1.
  std::uint32_t features = 0;
  // Value of the constant feature of each row. Below 0: none.
  double bias = -1;
  // Subtracted from the score (ONECLASS_SVM). 0 for other solvers.
  double rho = 0;
  // Columns that have weights, the bias among them if there is one.
  ColumnMap columns;
  // Weights by (column id, output).
  std::vector<double> weights;

  // Number of scores of a row: 1 for a regression and for two classes, else one for each class.
  // MCSVM_CS (Crammer and Singer) has one for each class always.
  std::size_t outputs() const;
  // True if the scores are logits, so that classes have probabilities.
  bool has_probabilities() const;
};

// LIBLINEAR's name of a solver with this objective. Elastic nets have none of their own: they take
// that of l2.
std::string solver_name(const Objective& objective);

// Writes a file that LIBLINEAR 2.3 reads, atomically. Weights are written so that they read back as
// the same float64. Throws as base/file.h says.
void write_model(const Model& model, const std::string& path);

// Reads a file of LIBLINEAR (or of write_model). Memory grows with the weights that the file has,
// not with the numbers in its header. Throws Error(kInvalidArgument) if the file cannot be opened.
// Throws Error(kCorrupt), in the form FILE:LINE: reason, if it is not such a file: an unknown
// solver or key, missing or superfluous weights, words that are not numbers.
Model read_model(const std::string& path);

}  // namespace weft::linear
