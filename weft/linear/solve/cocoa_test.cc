#include "weft/linear/solve/cocoa.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/linear/solve/testing/reference_data.h"
#include "weft/linear/solve/testing/thread_ranks.h"

namespace weft::linear {
namespace cocoa_test {

CocoaResult solve(const ReferenceData& data, const Objective& objective,
                  const CocoaOptions& options) {
  Alone alone;
  return cocoa({&data.rows, data.targets, objective}, data.columns, alone, options);
}

// The result of rank 0 of `ranks` ranks as threads, which divide the rows.
CocoaResult solve_on(int ranks, const Objective& objective, const CocoaOptions& options) {
  CocoaResult result;
  on_thread_ranks(ranks, [&](Ranks& me) {
    const auto data = reference_part(objective.loss, me.rank(), ranks);
    auto mine = cocoa({&data.rows, data.targets, objective}, data.columns, me, options);
    if (me.rank() == 0) result = std::move(mine);
  });
  return result;
}

Objective objective_of(const Optimum& optimum) {
  return {parse_loss(optimum.loss), optimum.l2, optimum.l1};
}

void expect_optimum(const CocoaResult& result, const Optimum& optimum) {
  EXPECT_TRUE(result.converged);
  EXPECT_NEAR(result.certificate.primal, optimum.objective, 1e-6 * optimum.objective);
  // Weak duality bounds the distance to the known optimum from both sides.
  EXPECT_LE(result.certificate.dual, optimum.objective * (1 + 1e-8));
  EXPECT_GE(result.certificate.primal, optimum.objective * (1 - 1e-8));
  for (std::size_t j = 0; j < optimum.weights.size(); ++j)
    EXPECT_NEAR(result.weights[j], optimum.weights[j], 2e-3) << j;
}

TEST(Cocoa, FindsTheOptimaOfScikitLearnWithOneRank) {
  for (const Optimum& optimum : optima()) {
    if (optimum.l2 == 0) continue;
    SCOPED_TRACE(optimum.loss + " " + std::to_string(optimum.l2));
    const auto data = reference_data(parse_loss(optimum.loss));
    expect_optimum(solve(data, objective_of(optimum), exactly(1e-7)), optimum);
  }
}

TEST(Cocoa, FindsTheSameOptimaWithThreeRanks) {
  for (const Optimum& optimum : optima()) {
    if (optimum.l2 < 0.01) continue;
    SCOPED_TRACE(optimum.loss + " " + std::to_string(optimum.l2));
    expect_optimum(solve_on(3, objective_of(optimum), exactly(5e-7)), optimum);
  }
}

TEST(CocoaSlow, FindsTheSameOptimaWithThreeRanksForEachRule) {
  for (const Optimum& optimum : optima()) {
    if (optimum.l2 == 0) continue;
    for (const auto aggregation : {Aggregation::kAdding, Aggregation::kAveraging}) {
      for (const auto sigma : {Sigma::kMeasured, Sigma::kSafe}) {
        if (aggregation == Aggregation::kAveraging && sigma == Sigma::kSafe) continue;
        SCOPED_TRACE(optimum.loss + " " + std::to_string(optimum.l2));
        auto options = exactly(5e-7);
        options.aggregation = aggregation;
        options.sigma = sigma;
        expect_optimum(solve_on(3, objective_of(optimum), options), optimum);
      }
    }
  }
}

TEST(Cocoa, RanksWithoutRowsTakePart) {
  const Optimum& optimum = optima()[0];
  on_thread_ranks(3, [&](Ranks& me) {
    const auto data = reference_data(Loss::kSquared, 0, me.rank() == 1 ? 200 : 0);
    const auto result =
        cocoa({&data.rows, data.targets, objective_of(optimum)}, 60, me, exactly(5e-7));
    expect_optimum(result, optimum);
  });
}

TEST(Cocoa, EveryRankGetsTheSameBitsAndARunRepeats) {
  std::vector<std::vector<double>> weights;
  std::mutex mutex;
  for (int run = 0; run < 2; ++run) {
    on_thread_ranks(4, [&](Ranks& me) {
      const auto data = reference_part(Loss::kLogistic, me.rank(), 4);
      auto result =
          cocoa({&data.rows, data.targets, {Loss::kLogistic, 1e-3, 0}}, 60, me, exactly(1e-5));
      const std::lock_guard lock(mutex);
      weights.push_back(std::move(result.weights));
    });
  }
  for (const auto& of : weights) EXPECT_EQ(of, weights[0]);
}

TEST(Cocoa, TheGapBoundsTheDistanceToTheOptimumInEachRoundAndGoesToZero) {
  const Optimum& optimum = optima()[4];
  ASSERT_EQ(optimum.loss, "logistic");
  auto options = exactly(1e-9);
  options.certificate_every = 1;
  std::vector<double> gaps;
  options.on_round = [&](const Round& round) {
    if (!round.certificate) return;
    const double suboptimality = round.certificate->primal - optimum.objective;
    EXPECT_GE(suboptimality, -1e-9);
    EXPECT_GE(round.certificate->gap(), suboptimality - 1e-9);
    gaps.push_back(round.certificate->gap());
  };
  const auto data = reference_data(Loss::kLogistic);
  EXPECT_TRUE(solve(data, objective_of(optimum), options).converged);
  ASSERT_GT(gaps.size(), 5U);
  EXPECT_LT(gaps.back(), 1e-8 * gaps.front());
}

TEST(Cocoa, StopsAtTheRequestedAbsoluteOrRelativeGap) {
  const auto data = reference_data(Loss::kHinge);
  auto options = exactly(0);
  options.stop.absolute_gap = 1e-3;
  const auto absolute = solve(data, {Loss::kHinge, 0.01, 0}, options);
  EXPECT_TRUE(absolute.converged);
  EXPECT_LE(absolute.certificate.gap(), 1e-3);
  EXPECT_GT(absolute.certificate.gap(), 1e-7);
  options = exactly(1e-2);
  const auto relative = solve(data, {Loss::kHinge, 0.01, 0}, options);
  EXPECT_LE(relative.certificate.relative_gap(), 1e-2);
  options.stop = {.relative_gap = 1e-12, .max_passes = 3};
  const auto early = solve(data, {Loss::kHinge, 0.01, 0}, options);
  EXPECT_FALSE(early.converged);
  EXPECT_GT(early.certificate.gap(), 0);
}

TEST(Cocoa, CertificatesAreThoseOfTheReturnedWeightsAndDuals) {
  const Objective objective{Loss::kSquaredHinge, 0.01, 0};
  const auto data = reference_data(objective.loss);
  const auto result = solve(data, objective, exactly(1e-3));
  double conjugates = 0;
  std::vector<double> v(60);
  for (std::size_t i = 0; i < 200; ++i) {
    const double b = data.targets[i] * result.duals[i];
    conjugates += -b + b * b / 4;
    for (const Entry& e : data.rows.row(i)) v[e.column] += result.duals[i] * e.value / 2;
  }
  double primal = 0, squares = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    double z = 0;
    for (const Entry& e : data.rows.row(i)) z += v[e.column] * e.value;
    primal += std::pow(std::max(0.0, 1 - data.targets[i] * z), 2) / 200;
  }
  for (std::size_t j = 0; j < 60; ++j) {
    EXPECT_NEAR(result.weights[j], v[j], 1e-12);
    squares += v[j] * v[j];
  }
  EXPECT_NEAR(result.certificate.primal, primal + 0.005 * squares, 1e-12);
  EXPECT_NEAR(result.certificate.dual, -conjugates / 200 - 0.005 * squares, 1e-12);
}

TEST(Cocoa, AnEstimateFromSamplesPredictsTheGap) {
  const auto data = reference_data(Loss::kLogistic);
  auto options = exactly(1e-8);
  options.certificate_every = 1;
  options.on_round = [&](const Round& round) {
    if (round.passes < 2 || round.certificate->relative_gap() < 1e-7) return;
    EXPECT_GT(round.estimate, 0.2 * round.certificate->relative_gap());
    EXPECT_LT(round.estimate, 50 * round.certificate->relative_gap());
  };
  solve(data, {Loss::kLogistic, 0.01, 0}, options);
}

TEST(Cocoa, ARoundSendsOneNumberForEachWeightAndACertificateTwo) {
  auto options = exactly(0);
  options.stop.max_passes = 4;
  options.local_passes = 0.5;
  options.certificate_every = 2;
  std::vector<std::uint64_t> bytes;
  on_thread_ranks(2, [&](Ranks& me) {
    auto mine = options;
    if (me.rank() == 0) {
      mine.on_round = [&](const Round& round) { bytes.push_back(round.exchanged_bytes); };
    }
    const auto data = reference_part(Loss::kSquared, me.rank(), 2);
    cocoa({&data.rows, data.targets, {Loss::kSquared, 0.01, 0}}, 60, me, mine);
  });
  const std::uint64_t round = (60 + 4) * 8, certificate = 2 * 8;
  EXPECT_EQ(bytes,
            (std::vector<std::uint64_t>{round, 2 * round, 3 * round, 4 * round + certificate,
                                        5 * round + certificate, 6 * round + certificate,
                                        7 * round + certificate, 8 * round + 2 * certificate}));
}

TEST(Cocoa, InvalidProblemsAndOptionsAreRefused) {
  const auto data = reference_data(Loss::kSquared), none = reference_data(Loss::kSquared, 0, 0);
  const auto refused = [&](const ReferenceData& of, const Objective& objective,
                           const CocoaOptions& options, const std::string& what) {
    expect_refused([&] { solve(of, objective, options); }, Errc::kInvalidArgument, what);
  };
  refused(none, {Loss::kSquared, 1, 0}, {}, "the data has no rows");
  refused(data, {Loss::kSquared, 0, 1}, {}, "needs l2 above 0");
  CocoaOptions options;
  options.stop.relative_gap = -1;
  refused(data, {Loss::kSquared, 1, 0}, options, "a gap must be at least 0");
  options = {};
  options.local_passes = -1;
  refused(data, {Loss::kSquared, 1, 0}, options, "local_passes");
}

}  // namespace cocoa_test
}  // namespace weft::linear
