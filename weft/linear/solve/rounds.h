// What solvers report after each round, and when they stop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace weft::linear {

// A primal and a dual objective. By weak duality P(w) >= min P >= D(a), so the gap bounds how far
// the weights are from the optimum.
struct Certificate {
  double primal = 0, dual = 0;

  double gap() const { return primal - dual; }
  // Gap as a part of the primal objective.
  double relative_gap() const { return primal > 0 ? gap() / primal : gap(); }
};

struct Round {
  std::int64_t round = 0;  // From 1.
  double passes = 0;       // Passes over the data so far.
  double seconds = 0;      // Since the solver began.
  // Bytes that this rank has exchanged since the solver began.
  std::uint64_t exchanged_bytes = 0;
  // σ' of the round's subproblem, and the factor γ with which its changes were applied.
  double sigma = 1, gamma = 1;
  // Estimate of the relative gap from the rows that the round visited; 0: none.
  double estimate = 0;
  // The certificate, in rounds that computed it.
  std::optional<Certificate> certificate;
};

struct StopRule {
  // Stop when a certificate has at most this gap, relative or absolute. 0: never by this one.
  double relative_gap = 1e-3, absolute_gap = 0;
  // Stop after this many passes over the data.
  std::int64_t max_passes = 1000;
};

// True if the certificate is good enough.
bool reached(const StopRule& rule, const Certificate& certificate);
// Throws Error(kInvalidArgument) for a gap below 0 and fewer than one pass.
void check(const StopRule& rule);

using OnRound = std::function<void(const Round&)>;

}  // namespace weft::linear
