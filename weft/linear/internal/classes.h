// The classes of a data set that ranks hold together, and the targets of a one-vs-rest problem.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/linear/solve/objective.h"
#include "weft/linear/solve/ranks.h"

namespace weft::linear::internal {

// The classes in the order in which they occur in the data, that of ranks first; 1 before -1 where
// these are the two, as LIBLINEAR orders them. Collective; all ranks throw the same error. Throws
// Error(kInvalidArgument) for a label that is not an int, for one class only, and for more than
// max_classes classes.
std::vector<int> find_classes(std::span<const double> labels, std::size_t max_classes,
                              Ranks& ranks);

// 1 for rows of this class, -1 for all others.
std::vector<double> targets_of(std::span<const double> labels, int of_class);

}  // namespace weft::linear::internal
