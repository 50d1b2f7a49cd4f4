#include "weft/linear/solve/prox_cocoa.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/linear/solve/testing/reference_data.h"
#include "weft/linear/solve/testing/thread_ranks.h"

namespace weft::linear {
namespace prox_cocoa_test {

// The result of each rank.
std::vector<CocoaResult> solve_on(int ranks, const Objective& objective,
                                  const CocoaOptions& options) {
  std::vector<CocoaResult> results(static_cast<std::size_t>(ranks));
  on_thread_ranks(ranks, [&](Ranks& me) {
    const auto data = reference_part(objective.loss, me.rank(), ranks);
    auto mine = options;
    if (me.rank() != 0) mine.on_round = nullptr;
    results[static_cast<std::size_t>(me.rank())] =
        prox_cocoa({&data.rows, data.targets, objective}, data.columns, me, mine);
  });
  return results;
}

void expect_optimum(const CocoaResult& result, const Optimum& optimum, double tolerance) {
  EXPECT_TRUE(result.converged);
  EXPECT_NEAR(result.certificate.primal, optimum.objective, tolerance * optimum.objective);
  EXPECT_LE(result.certificate.dual, optimum.objective * (1 + 1e-8));
  EXPECT_GE(result.certificate.primal, optimum.objective * (1 - 1e-8));
  for (std::size_t j = 0; j < optimum.weights.size(); ++j) {
    EXPECT_NEAR(result.weights[j], optimum.weights[j], 4e-3) << j;
    if (std::abs(optimum.weights[j]) > 0.02) {
      EXPECT_NE(result.weights[j], 0) << j;
    }
  }
}

Objective objective_of(const Optimum& optimum) {
  return {parse_loss(optimum.loss), optimum.l2, optimum.l1};
}

TEST(ProxCocoa, FindsTheOptimaOfScikitLearnWithOneRank) {
  for (const Optimum& optimum : optima()) {
    if (optimum.l1 == 0) continue;
    SCOPED_TRACE(optimum.loss + " " + std::to_string(optimum.l1));
    expect_optimum(solve_on(1, objective_of(optimum), exactly(1e-7))[0], optimum, 1e-6);
  }
}

TEST(ProxCocoa, FindsTheSameOptimaWithThreeRanks) {
  for (const Optimum& optimum : optima()) {
    if (optimum.l1 == 0 || optimum.loss != "squared") continue;
    SCOPED_TRACE(optimum.loss + " " + std::to_string(optimum.l1));
    expect_optimum(solve_on(3, objective_of(optimum), exactly(1e-6))[2], optimum, 1e-6);
  }
}

TEST(ProxCocoaSlow, FindsTheSameOptimaWithThreeRanksForEachRule) {
  for (const Optimum& optimum : optima()) {
    if (optimum.l1 == 0) continue;
    for (const auto aggregation : {Aggregation::kAdding, Aggregation::kAveraging}) {
      for (const auto sigma : {Sigma::kMeasured, Sigma::kSafe}) {
        SCOPED_TRACE(optimum.loss + " " + std::to_string(optimum.l1));
        auto options = exactly(1e-6);
        options.aggregation = aggregation;
        options.sigma = sigma;
        expect_optimum(solve_on(3, objective_of(optimum), options)[0], optimum, 1e-6);
      }
    }
  }
}

TEST(ProxCocoa, WeightsThatTheOptimumLeavesOutAreExactlyZero) {
  for (const Optimum& optimum : optima()) {
    if (optimum.l2 != 0 || optimum.loss != "squared") continue;
    const auto result = solve_on(2, objective_of(optimum), exactly(1e-8))[0];
    for (std::size_t j = 0; j < 60; ++j)
      EXPECT_EQ(result.weights[j] == 0, std::abs(optimum.weights[j]) < 1e-5) << j;
  }
}

TEST(ProxCocoa, SolvesRidgeLikeCocoaByRows) {
  const Optimum& ridge = optima()[0];
  ASSERT_TRUE(ridge.loss == "squared" && ridge.l1 == 0);
  expect_optimum(solve_on(2, objective_of(ridge), exactly(1e-7))[1], ridge, 1e-6);
}

TEST(ProxCocoa, ThePrimalFallsInEachRoundAndTheGapGoesToZero) {
  for (const auto sigma : {Sigma::kSafe, Sigma::kMeasured}) {
    for (const int ranks : {1, 4}) {
      auto options = exactly(1e-7);
      options.sigma = sigma;
      options.local_passes = 1;
      double last = INFINITY, gap = INFINITY;
      options.on_round = [&](const Round& round) {
        EXPECT_LE(round.certificate->primal, last + 1e-12);
        EXPECT_GE(round.certificate->gap(), -1e-12);
        last = round.certificate->primal;
        gap = round.certificate->relative_gap();
      };
      solve_on(ranks, {Loss::kSquared, 0, 0.02}, options);
      EXPECT_LE(gap, 1e-7);
    }
  }
}

TEST(ProxCocoa, EveryRankGetsTheSameBits) {
  const auto results = solve_on(4, {Loss::kLogistic, 0, 0.01}, exactly(1e-4));
  for (const auto& result : results) EXPECT_EQ(result.weights, results[0].weights);
}

TEST(ProxCocoa, ARoundSendsOneNumberForEachRow) {
  auto options = exactly(0);
  options.stop.max_passes = 2;
  options.local_passes = 0.5;
  options.certificate_every = 2;
  std::vector<std::uint64_t> bytes;
  options.on_round = [&](const Round& round) { bytes.push_back(round.exchanged_bytes); };
  solve_on(2, {Loss::kSquared, 0, 0.01}, options);
  ASSERT_EQ(bytes.size(), 4U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(bytes[i], (i + 1) * (200 + 1) * 8);
  EXPECT_EQ(bytes[3], 4 * (200 + 1) * 8 + 3 * 8);
}

TEST(ProxCocoa, CountsThePassesThatLocalPassesAsksFor) {
  auto options = exactly(0);
  std::vector<double> passes;
  std::vector<bool> certified;
  options.on_round = [&](const Round& round) {
    passes.push_back(round.passes);
    certified.push_back(round.certificate.has_value());
  };
  options.stop.max_passes = 7;
  options.local_passes = 3;
  options.certificate_every = 6;
  solve_on(1, {Loss::kSquared, 0, 0.01}, options);
  EXPECT_EQ(passes, (std::vector<double>{3, 6, 9}));
  EXPECT_EQ(certified, (std::vector<bool>{false, true, true}));
  // The five visits of the default count as one pass.
  passes.clear();
  options.stop.max_passes = 2;
  options.local_passes = 0;
  solve_on(1, {Loss::kSquared, 0, 0.01}, options);
  EXPECT_GE(passes.size(), 2U);
  EXPECT_EQ(passes.back(), 2);
}

TEST(ProxCocoa, HingeIsRefused) {
  expect_refused(
      [] {
        solve_on(1, {Loss::kHinge, 0, 0.1}, {});
      },
      Errc::kInvalidArgument, "needs a smooth loss");
}

}  // namespace prox_cocoa_test
}  // namespace weft::linear
