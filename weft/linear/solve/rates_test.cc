// The convergence rates of the papers. These are the tests that a wrong σ' fails.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/linear/solve/cocoa.h"
#include "weft/linear/solve/testing/reference_data.h"
#include "weft/linear/solve/testing/thread_ranks.h"

namespace weft::linear {
namespace rates_test {

// The reference data with rows of at most unit length, which the papers assume.
ReferenceData unit_rows(Loss loss) {
  auto data = reference_data(loss);
  for (Entry& entry : data.rows.entries) entry.value /= 3;
  return data;
}

// Dual objectives after each round of rank 0. `same_rows`: each rank holds all rows.
std::vector<double> duals(int ranks, const Objective& objective, CocoaOptions options,
                          bool same_rows = false) {
  std::vector<double> found;
  const auto all = unit_rows(objective.loss);
  on_thread_ranks(ranks, [&](Ranks& me) {
    ReferenceData mine;
    for (std::size_t i = 0; i < 200; ++i) {
      if (!same_rows && i % static_cast<std::size_t>(ranks) != static_cast<std::size_t>(me.rank()))
        continue;
      mine.rows.add(0, all.rows.row(i));
      mine.targets.push_back(all.targets[i]);
    }
    auto with = options;
    if (me.rank() == 0) {
      with.on_round = [&](const Round& round) { found.push_back(round.certificate->dual); };
    }
    cocoa({&mine.rows, mine.targets, objective}, 60, me, with);
  });
  return found;
}

CocoaOptions rounds(std::int64_t number) {
  CocoaOptions options;
  options.stop = {.relative_gap = 0, .absolute_gap = 0, .max_passes = number};
  options.local_passes = 1;
  options.certificate_every = 1;
  return options;
}

double optimum(const Objective& objective) {
  auto options = rounds(20'000);
  options.stop.relative_gap = 1e-12;
  return duals(1, objective, options).back();
}

// Shalev-Shwartz and Zhang, theorem 5: for rows of at most unit length and a loss whose second
// derivative is at most 1/g, E[D* - D] falls by the factor exp(-1 / (n + 1 / (l2 g))) a step.
TEST(Rates, SdcaConvergesAtLeastAsFastAsItsTheoremForSmoothLosses) {
  for (const auto& [objective, g] : {std::pair(Objective{Loss::kSquared, 0.01, 0}, 1.0),
                                     {Objective{Loss::kLogistic, 0.001, 0}, 4.0},
                                     {Objective{Loss::kSquaredHinge, 0.01, 0}, 0.5}}) {
    SCOPED_TRACE(to_string(objective.loss));
    const double best = optimum(objective);
    constexpr int kPasses = 12, kSeeds = 5;
    std::vector<double> left(kPasses);
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      auto options = rounds(kPasses);
      options.seed = seed;
      const auto found = duals(1, objective, options);
      for (std::size_t t = 0; t < found.size(); ++t) left[t] += (best - found[t]) / kSeeds;
    }
    double bound = best;  // D is 0 for a = 0
    for (std::size_t t = 0; t < left.size(); ++t) {
      bound *= std::exp(-200 / (200 + 1 / (objective.l2 * g)));
      EXPECT_LE(left[t], bound + 1e-12) << t;
    }
  }
}

// Ma and others, the theorem for smooth losses: with local solvers that leave the part θ of a
// subproblem's gain, D* - D falls by the factor 1 - γ (1 - θ) / (1 + σ' s / (l2 g n)) a round. Here
// s bounds |A_k a|² / |a|²; it is at most the rows of a rank. Forty passes leave almost no θ.
TEST(Rates, CocoaPlusConvergesAtLeastAsFastAsItsTheorem) {
  const Objective objective{Loss::kSquared, 0.01, 0};
  const double best = optimum(objective), g = 1;
  for (const int ranks : {2, 4, 8}) {
    auto options = rounds(20 * 40);
    options.local_passes = 40;
    options.sigma = Sigma::kSafe;
    const auto found = duals(ranks, objective, options);
    ASSERT_EQ(found.size(), 20U);
    const double of_rank = 200.0 / ranks;
    const double factor = 1 - 0.99 / (1 + ranks * of_rank / (objective.l2 * g * 200));
    double bound = best;
    for (const double dual : found) EXPECT_LE(best - dual, (bound *= factor) + 1e-12) << ranks;
  }
}

TEST(Rates, TheDualGrowsInEachRoundIfSigmaIsSafeOrMeasured) {
  for (const auto sigma : {Sigma::kSafe, Sigma::kMeasured}) {
    for (const bool same_rows : {false, true}) {
      for (const Loss loss : {Loss::kSquared, Loss::kHinge, Loss::kLogistic}) {
        auto options = rounds(40);
        options.sigma = sigma;
        double last = -1e-12;
        for (const double dual : duals(4, {loss, 0.001, 0}, options, same_rows)) {
          EXPECT_GE(dual, last - 1e-12) << to_string(loss) << same_rows;
          last = dual;
        }
      }
    }
  }
}

// If all ranks hold the same rows and solve their subproblems almost exactly, their changes are the
// same: |Δv|² = K Σ |Δv_k|². Then σ' = K is the smallest safe value. Below half of it, a round
// overshoots by more than the factor two, and the distance to the optimum grows.
TEST(Rates, LessThanHalfOfTheSafeSigmaDivergesWhereTheRanksAgree) {
  const Objective objective{Loss::kSquared, 0.001, 0};
  auto options = rounds(20 * 20);
  options.local_passes = 20;
  options.sigma = Sigma::kSafe;
  const auto safe = duals(4, objective, options, true);
  EXPECT_GE(safe.back(), safe.front());
  options.fixed_sigma = 1.5;
  const auto unsafe = duals(4, objective, options, true);
  EXPECT_LT(unsafe.back(), unsafe.front() - 1);
  // The measured σ' comes back to K by itself, even from σ' = 1 in a round of agreement.
  EXPECT_EQ(measured_step(4, 1, 1, 4).gamma, 0.25);
  EXPECT_EQ(measured_step(4, 1, 1, 4).next_sigma, 4);
}

TEST(Rates, AMeasuredSigmaNeedsFewerPassesThanTheSafeOneOnSparseRows) {
  const Objective objective{Loss::kHinge, 0.005, 0};
  const auto passes = [&](Sigma sigma) {
    auto options = rounds(5000);
    options.local_passes = 0.2;
    options.sigma = sigma;
    options.stop.relative_gap = 1e-2;
    double last = 0;
    on_thread_ranks(4, [&](Ranks& me) {
      const auto data = reference_part(Loss::kHinge, me.rank(), 4);
      auto mine = options;
      if (me.rank() == 0) mine.on_round = [&](const Round& round) { last = round.passes; };
      cocoa({&data.rows, data.targets, objective}, 60, me, mine);
    });
    return last;
  };
  EXPECT_LT(passes(Sigma::kMeasured), 0.7 * passes(Sigma::kSafe));
}

TEST(Rates, AMeasuredStepMeetsTheConditionOfTheTheorem) {
  for (const double ratio : {0.5, 1.0, 1.7, 4.0}) {
    for (const double sigma : {1.0, 2.0, 4.0}) {
      const Step step = measured_step(ratio * 3, 3, sigma, 4);
      EXPECT_LE(step.gamma * ratio, sigma * (1 + 1e-12));
      EXPECT_TRUE(step.gamma == 1 || step.gamma * ratio >= sigma * (1 - 1e-12));
      EXPECT_TRUE(step.next_sigma >= 1 && step.next_sigma <= 4);
    }
  }
  EXPECT_EQ(measured_step(0, 0, 3, 4).gamma, 1);
  EXPECT_EQ(measured_step(0, 0, 3, 4).next_sigma, 3);
}

TEST(Rates, AnObjectiveThatIsNotFiniteAnyMoreIsAnError) {
  auto options = rounds(100'000);
  options.local_passes = 5;
  options.fixed_sigma = 0.5;
  expect_refused(
      [&] {
        duals(8, {Loss::kSquared, 1e-6, 0}, options, true);
      },
      Errc::kInvalidArgument, "is too small for 8 ranks");
}

}  // namespace rates_test
}  // namespace weft::linear
