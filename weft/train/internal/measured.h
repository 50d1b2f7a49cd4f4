// Measurements of all ranks of a group.
#pragma once

#include <vector>

#include "weft/comm/group.h"

namespace weft::train::internal {

// The middle value, the higher one of two. 0 without values.
double median(std::vector<double> values);

// One rank's numbers in each row, in the order of ranks. Every rank gives as many. Collective.
std::vector<std::vector<double>> gather_numbers(const Group& world,
                                                const std::vector<double>& mine);

// The largest of each number over the ranks. Collective.
std::vector<double> largest_numbers(const Group& world, const std::vector<double>& mine);

}  // namespace weft::train::internal
