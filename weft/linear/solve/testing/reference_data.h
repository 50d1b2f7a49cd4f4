// The data set and the optima of weft/linear/reference, which scikit-learn and SciPy computed.
#pragma once

#include <string>
#include <vector>

#include "weft/linear/data/libsvm.h"
#include "weft/linear/solve/cocoa_options.h"
#include "weft/linear/solve/objective.h"

namespace weft::linear {

struct Optimum {
  std::string loss;
  double l2 = 0, l1 = 0;
  double objective = 0;
  std::vector<double> weights;
};

inline const std::vector<Optimum>& optima() {
  static const std::vector<Optimum> all{
#include "weft/linear/reference/optima.inc"
  };
  return all;
}

struct ReferenceData {
  SparseRows rows;
  std::vector<double> targets;
  std::size_t columns = 60;
};

// Rows [begin, end) of the 200. A classifier's targets are the signs of the labels.
inline ReferenceData reference_data(Loss loss, std::size_t begin = 0, std::size_t end = 200) {
  const auto all = read_libsvm(WEFT_LINEAR_REFERENCE "data.svm");
  ReferenceData data;
  for (std::size_t i = begin; i < end; ++i) {
    data.rows.add(all.labels[i], all.row(i));
    const double label = all.labels[i];
    data.targets.push_back(!is_classifier(loss) ? label : label > 0 ? 1 : -1);
  }
  return data;
}

// Rank r's part of the rows.
inline ReferenceData reference_part(Loss loss, int rank, int ranks) {
  const auto r = static_cast<std::size_t>(rank), k = static_cast<std::size_t>(ranks);
  return reference_data(loss, 200 * r / k, 200 * (r + 1) / k);
}

// Stops at this duality gap.
inline CocoaOptions exactly(double relative_gap) {
  CocoaOptions options;
  options.stop = {.relative_gap = relative_gap, .max_passes = 50'000};
  return options;
}

}  // namespace weft::linear
