// CoCoA and CoCoA+: ranks that hold different rows train one linear model. Each improves its own
// part of the dual, and they add or average their changes.
//
// Sources: CoCoA: Jaggi, Smith, Takáč, Terhorst, Krishnan, Hofmann, Jordan, "Communication-
// efficient distributed dual coordinate ascent", NIPS 2014. CoCoA+: Ma, Smith, Jaggi, Jordan,
// Richtárik, Takáč, "Adding vs. averaging in distributed primal-dual optimization", ICML 2015.
// Strongly convex regularizers other than l2: Smith, Forte, Ma, Takáč, Jordan, Jaggi, "CoCoA: a
// general framework for communication-efficient distributed optimization", JMLR 18 (2018).
//
// A round (the dual, the subproblem and u: sdca.h), for K ranks:
//
//   1. Each rank changes some of its dual variables by SDCA on its subproblem: Δa_k, and
//      Δv_k = (1/(l2 n)) Σ Δa_i x_i.
//   2. All ranks sum Δv = Σ Δv_k, one number for each weight.
//   3. a += γ Δa,  v += γ Δv,  w = soft(v, l1/l2).
//
//   CoCoA     (averaging)   γ = 1/K, σ' = 1
//   CoCoA+    (adding)      γ = 1,   σ' = K
//
// The dual objective grows in each round if γ |Δv|² <= σ' Σ |Δv_k|² (Ma, equation 11). σ' = γ K is
// always safe. It is far too careful if the ranks' changes point into different directions, as
// those of sparse rows do. Sigma::kMeasured checks the condition itself in each round: it uses the
// ratio that the last round measured, |Δv|² / Σ |Δv_k|², times 1.05, as the next σ'. If a round
// does not meet the condition, γ is lowered until it does. So each round has the guarantee of a
// safe σ'.
//
// Sends: an all-reduce of (weights + 4) float64 a round, and of 2 for a certificate.
//
// Certificate: P(w) - D(a), one pass over the rows. It is computed after passes whose sampled
// estimate (sdca.h) says that the gap may be small enough.
//
// Limits: l2 must be above 0; for l2 = 0 see prox_cocoa.h. A small l2 n makes progress slow: SDCA
// needs about n + max |x|² φ''/l2 steps. The result does not depend on the number of ranks, but
// the steps to it do. With one seed and one number of ranks, all bits repeat.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/linear/solve/cocoa_options.h"
#include "weft/linear/solve/ranks.h"
#include "weft/linear/solve/rounds.h"
#include "weft/linear/solve/sdca.h"

namespace weft::linear {

struct CocoaResult {
  std::vector<double> weights;
  std::vector<double> duals;  // Of this rank's rows.
  Certificate certificate;    // Of these weights.
  std::int64_t rounds = 0;
  bool converged = false;  // The certificate meets the stop rule.
};

// Trains `weights` weights. Collective: all ranks pass the same options, number of weights and
// objective, and the rows that each holds, which may be none. Every rank gets the same weights.
// Throws Error(kInvalidArgument) for invalid options, if no rank has a row, and if the objective
// stops being finite (fixed_sigma too small). Throws what Ranks throws.
CocoaResult cocoa(const RowProblem& problem, std::size_t weights, Ranks& ranks,
                  const CocoaOptions& options);

// σ' and γ of the next round (Sigma::kMeasured), from the squared lengths of a round's changes.
struct Step {
  double gamma = 1, next_sigma = 1;
};
// `whole`: |Δv|². `parts`: Σ |Δv_k|². `sigma`: the σ' that the round used.
Step measured_step(double whole, double parts, double sigma, int ranks);

}  // namespace weft::linear
