// proxCoCoA+: CoCoA for l1 regularizers. Ranks hold different columns, and add or average the
// changes of their weights.
//
// Sources: Smith, Forte, Jordan, Jaggi, "L1-regularized distributed optimization: a communication-
// efficient primal-dual framework", arXiv 1512.04011 (2015); Smith, Forte, Ma, Takáč, Jordan,
// Jaggi, "CoCoA: a general framework for communication-efficient distributed optimization", JMLR
// 18 (2018), algorithm 2.
//
// CoCoA by rows needs a strongly convex regularizer, and l1 alone is not. So the roles switch: the
// primal P(w) = f(z) + Σ g(w_j) with z = Aw, f(z) = (1/n) Σ φ(z_i, y_i) and g(t) = l2/2 t² + l1 |t|
// is divided by columns. (The other way, adding a small l2 to use the rows, solves another problem,
// whose weights are not sparse at the same places. So weft does not do that.) A round, for K
// ranks:
//
//   1. r = φ'(z). Each rank visits its columns in random order. It minimizes over one weight
//        (1/n) x_j·r t + σ' L |x_j|² / (2n) t² + g(w_j + t),   then  r += σ' L t x_j
//      where L bounds φ'' (1 for squared, 1/4 for logistic, 2 for squared hinge).
//   2. All ranks sum Δz = Σ A_k Δw_k, one number for each row.
//   3. w += γ Δw,  z += γ Δz.
//
// σ' and γ are those of cocoa.h, also the measured ones: P falls in each round, because
// γ |Δz|² <= σ' Σ |A_k Δw_k|². After the first visit of a round, further visits of the same round
// skip weights that are 0.
//
// Certificate: for u = s φ'(z), P(w) + (1/n) Σ φ*(u_i) + Σ g*(-x_j·u / n) is a duality gap. If l2
// is 0, s <= 1 is the largest factor with |x_j·u| / n <= l1 for all j, else 1.
//
// Sends: an all-to-all of the entries (12 bytes each) once; an all-reduce of (rows + 1) float64 a
// round; about 3 float64 for a certificate. Memory: 40 bytes for each row of all ranks, on each
// rank.
//
// Limits: not for hinge, whose derivative jumps. At most 2^32 - 2 rows of all ranks together.
#pragma once

#include <vector>

#include "weft/linear/solve/cocoa.h"

namespace weft::linear {

// Trains as cocoa() does, and takes the same rows. The result has no duals. Here local_passes 0
// means: five visits of a pass's columns in a round, which ranks in shared memory divide into
// several rounds. The five visits count as one pass in max_passes and Round::passes. Throws as
// cocoa(), and Error(kInvalidArgument) for hinge.
CocoaResult prox_cocoa(const RowProblem& problem, std::size_t weights, Ranks& ranks,
                       const CocoaOptions& options);

}  // namespace weft::linear
