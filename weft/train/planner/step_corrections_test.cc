// Predictions that are corrected by real steps.
#include "weft/train/planner/internal/step_corrections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::train::internal {
namespace step_corrections_test {

using testing::DoubleNear;
using testing::ElementsAre;

// Blocks of 1 ms and 10 ms for each part of a batch of 8.
plan::Parts predicted(int micro_batches) {
  plan::Parts parts;
  parts.compute = 0.08 + 0.001 * micro_batches;
  parts.gradients = 0.002;
  parts.optimizer = 0.001;
  return parts;
}

// Two ranks: computation takes 1.2 times as long, and 2 ms for each micro-batch.
ProbedStep real(int micro_batches) {
  ProbedStep step;
  step.data = 0.0005;
  step.compute = 1.2 * predicted(micro_batches).compute + 0.002 * micro_batches;
  step.communication = 0.001;
  step.update = 0.004;
  const double host = 0.0003;
  step.seconds = step.data + step.compute + step.communication + step.update + host;
  step.busy = {step.seconds - step.communication, step.seconds - step.communication};
  return step;
}

TEST(Corrections, SeparateAFactorFromTheCostOfAMicroBatch) {
  const auto m = corrections({1, predicted(1), real(1)}, ComparedStep{2, predicted(2), real(2)}, 1);
  EXPECT_NEAR(m.compute, 1.2, 1e-9);
  EXPECT_NEAR(m.micro_batch, 0.002, 1e-9);
  EXPECT_NEAR(*m.step, 0.0008, 1e-9);
  EXPECT_NEAR(m.sync * (0.003 + m.sync_start), 0.005, 1e-9);
  EXPECT_TRUE(m.slowness.empty());
}

TEST(Corrections, WithOneStepTheDifferenceIsTheCostOfAMicroBatch) {
  const auto m = corrections({1, predicted(1), real(1)}, std::nullopt, 1);
  EXPECT_EQ(m.compute, 1);
  EXPECT_NEAR(m.micro_batch, real(1).compute - predicted(1).compute, 1e-9);
}

TEST(Corrections, FasterStepsThanPredictedAreAFactor) {
  ProbedStep step = real(1);
  const double faster = 0.9 * predicted(1).compute, saved = step.compute - faster;
  step.compute = faster;
  step.seconds -= saved;
  for (double& busy : step.busy) busy -= saved;
  const auto m = corrections({1, predicted(1), step}, std::nullopt, 1);
  EXPECT_NEAR(m.compute, 0.9, 1e-9);
  EXPECT_EQ(m.micro_batch, 0);
}

TEST(Corrections, RanksThatShareAProcessorShareTheCostOfAMicroBatch) {
  const auto m = corrections({1, predicted(1), real(1)}, ComparedStep{2, predicted(2), real(2)}, 2);
  EXPECT_NEAR(m.micro_batch, 0.001, 1e-9);
}

TEST(Corrections, ARankAtHalfSpeedIsFound) {
  ProbedStep step = real(1);
  step.busy[1] += step.compute;  // it sleeps as long as it computes
  const auto m = corrections({1, predicted(1), step}, std::nullopt, 1);
  ASSERT_EQ(m.slowness.size(), 2u);
  EXPECT_NEAR(m.slowness[1] / m.slowness[0], 2, 1e-6);
  EXPECT_NEAR(m.slowness[0] + m.slowness[1], 2, 1e-6);
}

// So the prediction of the layout that was measured is the measurement.
TEST(Corrections, PredictTheStepThatWasMeasured) {
  const auto m = corrections({1, predicted(1), real(1)}, ComparedStep{2, predicted(2), real(2)}, 1);
  const plan::Parts parts = predicted(1);
  const double seconds = m.compute * parts.compute + m.micro_batch +
                         m.sync * (parts.gradients + parts.optimizer + m.sync_start) + *m.step;
  EXPECT_NEAR(seconds, real(1).seconds, 1e-9);
}

TEST(Corrections, NothingMeasuredChangesNothing) {
  const auto m = corrections({1, {}, {}}, std::nullopt, 1);
  EXPECT_EQ(m.compute, 1);
  EXPECT_EQ(m.micro_batch, 0);
  EXPECT_EQ(*m.step, 0);
}

// Two hosts of two ranks; gradients take three times as long as expected.
TEST(Departed, SlowerLinksAlsoSlowMessagesBetweenStages) {
  plan::Job job;
  job.cluster.nodes = {{.devices = 2,
                        .count = 2,
                        .intra = {.bandwidth = 10e9, .latency = 1e-6},
                        .inter = {.bandwidth = 1e9, .latency = 1e-5}}};
  job.measured.message = 1e-5;
  const StepParts expected{.step = 0.02, .compute = 0.01, .communication = 0.008, .update = 0.002};
  Departure departure{
      .cause = Cause::kLinks,
      .measured = {
          .step = 0.045, .data = 0.005, .compute = 0.01, .communication = 0.027, .update = 0.003}};
  plan::Job seen = departed(job, expected, departure, 0);
  EXPECT_NEAR(seen.cluster.nodes[0].inter.bandwidth, 1e9 / 3, 1);
  EXPECT_NEAR(seen.cluster.nodes[0].inter.latency, 3e-5, 1e-12);
  EXPECT_EQ(seen.cluster.nodes[0].intra, job.cluster.nodes[0].intra);
  EXPECT_NEAR(seen.measured.message, 3e-5, 1e-12);
  EXPECT_EQ(seen.measured.sync, 1);
  EXPECT_NEAR(*seen.measured.step, 0.005, 1e-12);

  // 3 MB of each of two ranks in 30 ms.
  job.measured.sync = 0.3;
  seen = departed(job, expected, departure, 3e6);
  EXPECT_NEAR(seen.cluster.nodes[0].inter.bandwidth, 2e8, 1);
  EXPECT_EQ(seen.measured.sync, 1);

  job.cluster.nodes[0].count = 1;
  seen = departed(job, expected, departure, 0);
  EXPECT_NEAR(seen.cluster.nodes[0].intra.bandwidth, 10e9 / 3, 1);
  EXPECT_EQ(seen.cluster.nodes[0].inter, job.cluster.nodes[0].inter);
}

TEST(Departed, SlowerComputationLeavesTheLinksAsTheyAre) {
  plan::Job job;
  job.cluster.nodes = {{.devices = 2}};
  job.measured.micro_batch = 1e-4;
  const StepParts expected{.step = 0.02, .compute = 0.01, .communication = 0.01};
  const plan::Job seen =
      departed(job, expected,
               {.cause = Cause::kCompute,
                .measured = {.step = 0.035, .compute = 0.02, .communication = 0.015}},
               0);
  EXPECT_NEAR(seen.measured.compute, 2, 1e-12);
  EXPECT_NEAR(seen.measured.micro_batch, 2e-4, 1e-12);
  EXPECT_NEAR(seen.measured.sync, 1.5, 1e-12);
  EXPECT_EQ(seen.cluster.nodes[0].intra, job.cluster.nodes[0].intra);
}

TEST(SharesOf, AreThoseOfTheSpeeds) {
  plan::Layout layout;
  layout.dp = 2;
  EXPECT_THAT(shares_of(layout, {1, 2}),
              ElementsAre(DoubleNear(4.0 / 3, 1e-9), DoubleNear(2.0 / 3, 1e-9)));
  EXPECT_THAT(shares_of(layout, {1, 1}), ElementsAre(1, 1));
  EXPECT_THAT(shares_of(layout, {1, 1e9}), ElementsAre(DoubleNear(2, 1e-6), 0.05));
}

// Ranks lie in the order pp, dp, tp: replica 1 is ranks 2, 3, 6 and 7.
TEST(SharesOf, TheSlowestRankOfAReplicaCounts) {
  plan::Layout layout;
  layout.pp = layout.dp = layout.tp = 2;
  EXPECT_THAT(shares_of(layout, {1, 1, 1, 1, 1, 1, 3, 1}),
              ElementsAre(DoubleNear(1.5, 1e-9), DoubleNear(0.5, 1e-9)));
}

// Ranks of fsdp divide the samples of their replica by speed.
TEST(SharesOf, RanksOfFsdpAddTheirSpeeds) {
  plan::Layout layout;
  layout.dp = layout.fsdp = 2;
  layout.zero_stage = 3;
  EXPECT_THAT(shares_of(layout, {1, 1, 1, 0.25}),
              ElementsAre(DoubleNear(4.0 / 7, 1e-9), DoubleNear(10.0 / 7, 1e-9)));
  layout.dp = 1;
  EXPECT_THAT(shares_of(layout, {1, 3}), ElementsAre(1));
}

}  // namespace step_corrections_test
}  // namespace weft::train::internal
