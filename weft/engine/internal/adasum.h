// Adasum: combines the gradients of ranks without averaging away what they agree on (Maleki and
// others: Scaling distributed training with adaptive summation, 2020, arXiv:2006.02924).
//
// Two gradients of a layer become (equation 3 of the paper)
//   (1 - a·b / (2 |a|^2)) a + (1 - a·b / (2 |b|^2)) b
// which is their sum if they are orthogonal, and their mean if they are equal. More ranks are
// combined in a tree: (0, 1), (2, 3), then the two results, … Recursive halving does this on parts
// (the paper's algorithm 1):
//   round d = 1, 2, 4, …   ranks r and r xor d exchange halves of their part; each keeps one
//                          half of both, the dot products are added over 2 d ranks, and the halves
//                          are combined
//   then                   the parts are gathered in reverse order
//
// A rank sends 2 (W - 1) / W of the gradients, as in an all-reduce, and 24 bytes for each layer and
// round of the dot products, of which there are (log2 W)^2 / 2. Needs a power of two of ranks.
// Every rank ends with the same bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "weft/comm/group.h"

namespace weft::engine::internal {

// Combines `flat`, float32 or float64, in place. Layer i is [bounds[i], bounds[i + 1]). Collective.
// Throws as Group's operations do; `flat` is then undefined.
void adasum(const Group& group, at::Tensor& flat, const std::vector<std::int64_t>& bounds);

}  // namespace weft::engine::internal
