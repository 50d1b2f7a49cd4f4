// Steps that are corrected by measurements, and the bytes that ranks send.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "weft/base/testing/refusal.h"
#include "weft/plan/model/profile.h"
#include "weft/plan/step/bound.h"
#include "weft/plan/step/step.h"

namespace weft::plan {
namespace measured_test {

constexpr double kParameters = 1e6;

// Four equal measured blocks on one machine with shared memory: 1 ms forward and 2 ms backward for
// each sample.
Job on_one_machine(int ranks, int processors) {
  Profile profile{.name = "blocks", .batches = {1}};
  for (int b = 0; b < 4; ++b) {
    MeasuredBlock block{.name = std::to_string(b), .forward = {1e-3}, .backward = {2e-3}};
    block.parameters = kParameters;
    block.output_bytes = 1000;
    block.kept_bytes = 1000;
    profile.blocks.push_back(block);
  }
  Job job;
  job.model = measured_model(profile);
  Accelerator core{.name = "core", .generation = Generation::kCpu};
  core.peaks[static_cast<std::size_t>(Precision::kFp32)] = 1e11;
  core.memory = 1e10;
  core.bandwidth = 1e10;
  core.rates = {{64, 64, 64, 1e-5}};
  job.cluster.name = "one machine";
  job.cluster.library = Library::kWeft;
  job.cluster.accelerators = {core};
  NodeType node{.devices = ranks, .processors = processors};
  node.wiring = Wiring::kShared;
  node.intra = {.bandwidth = 1e10, .latency = 1e-6};
  node.inter = {.bandwidth = 1e9, .latency = 1e-5};
  job.cluster.nodes = {node};
  job.software = software("weft");
  job.optimizer = optimizer_of("sgd");
  job.layout.precision = Precision::kFp32;
  job.layout.dp = ranks;
  job.layout.micro_batch = 2;
  job.layout.global_batch = 4 * ranks;
  return job;
}

TEST(Measured, TimesOfMicroBatchesAndOfTheStepAreAdded) {
  Job job = on_one_machine(2, 2);
  const Step before = simulate_step(job);
  job.measured.micro_batch = 1e-3;
  job.measured.step = job.software.step_overhead + 5e-3;
  const Step after = simulate_step(job);
  EXPECT_NEAR(after.seconds - before.seconds, 2 * 1e-3 + 5e-3, 1e-9);
  EXPECT_NEAR(after.parts.sum(), after.seconds, 1e-9);
  EXPECT_LE(bound_of(job).seconds, after.seconds * (1 + 1e-9));
}

// The fixed cost of a micro-batch is mostly that its gradients are added to those before.
TEST(Measured, AStageHasItsShareOfTheTimeOfAMicroBatch) {
  Job job = on_one_machine(2, 2);
  job.layout.dp = 1;
  job.layout.pp = 2;
  job.layout.cuts = {3};
  const auto before = simulate_step(job).stages;
  job.measured.micro_batch = 8e-3;
  const auto after = simulate_step(job).stages;
  const auto more = [&](std::size_t stage) {
    return after[stage].forward + after[stage].backward - before[stage].forward -
           before[stage].backward;
  };
  EXPECT_NEAR(more(0), 6e-3, 1e-9);
  EXPECT_NEAR(more(1), 2e-3, 1e-9);
}

TEST(Measured, FactorsApplyToComputationAndToTheUpdate) {
  Job job = on_one_machine(2, 2);
  const Parts before = simulate_step(job).parts;
  job.measured.compute = 1.5;
  job.measured.sync = 3;
  job.measured.sync_start = 1e-4;
  const Parts after = simulate_step(job).parts;
  EXPECT_NEAR(after.compute, 1.5 * before.compute, 1e-9);
  EXPECT_NEAR(after.optimizer + after.gradients, 3 * (before.optimizer + before.gradients + 1e-4),
              1e-9);
}

// Two hosts with a processor each.
TEST(Measured, ACodecTakesItsTimeAndSendsItsShareOfTheBytes) {
  Job job = on_one_machine(1, 1);
  job.cluster.nodes[0].count = job.layout.dp = 2;
  job.layout.global_batch = 8;
  const Step plain = simulate_step(job);
  job.layout.codec = "int8:64,ef=on";
  const Step known = simulate_step(job);
  EXPECT_NEAR(known.traffic, plain.traffic * codec_ratio("int8:64"), 1);
  const double bytes = plain.traffic;  // of two ranks, each sends its gradients once
  job.measured.codecs[job.layout.codec] = {.seconds = 0, .bytes = 0.1};
  const Step sent = simulate_step(job);
  EXPECT_NEAR(sent.traffic, 0.1 * bytes, 1);
  EXPECT_LT(sent.parts.gradients, plain.parts.gradients);
  job.measured.codecs[job.layout.codec].seconds = 2e-9;
  const Step coded = simulate_step(job);
  EXPECT_NEAR(coded.parts.gradients - sent.parts.gradients, 2e-9 * bytes, 1e-9);
  EXPECT_NEAR(coded.parts.sum(), coded.seconds, 1e-9);
  EXPECT_LE(bound_of(job).seconds, coded.seconds * (1 + 1e-9));
  job.layout.codec = "none";
  EXPECT_EQ(simulate_step(job).seconds, plain.seconds);
}

TEST(Measured, TheSlowestRankSetsTheStepUnlessItsBatchIsSmaller) {
  Job job = on_one_machine(2, 2);
  const double even = simulate_step(job).parts.compute;
  job.measured.slowness = {1, 2};
  EXPECT_NEAR(simulate_step(job).parts.compute, 2 * even, 1e-9);
  job.layout.shares = {4.0 / 3, 2.0 / 3};
  EXPECT_NEAR(simulate_step(job).parts.compute, 4.0 / 3 * even, 1e-9);
  job.layout.fsdp = std::exchange(job.layout.dp, 1);
  job.layout.zero_stage = 3;
  job.layout.shares.clear();
  EXPECT_NEAR(simulate_step(job).parts.compute, 2 * even, 1e-9);
  job.layout.shares = {1};
  EXPECT_NEAR(simulate_step(job).parts.compute, 4.0 / 3 * even, 1e-9);
}

TEST(Measured, RanksThatShareProcessorsTakeTurns) {
  const double two = simulate_step(on_one_machine(2, 2)).parts.compute;
  EXPECT_NEAR(simulate_step(on_one_machine(4, 2)).parts.compute, 2 * two, 1e-9);
}

TEST(Measured, RanksOfOneHostUpdateTheirShareOfTheWeights) {
  const double two = simulate_step(on_one_machine(2, 2)).parts.optimizer;
  const double four = simulate_step(on_one_machine(4, 4)).parts.optimizer;
  EXPECT_LT(four, 0.6 * two);
}

// With one micro-batch, activations are freed while gradients are made; with more, gradients stay
// while the next one is computed.
TEST(Memory, GradientsExistFromTheFirstBackward) {
  Job job = on_one_machine(2, 2);
  Profile profile = *job.model.profile;
  for (MeasuredBlock& block : profile.blocks) block.kept_bytes = 16 * kParameters;
  job.model = measured_model(profile);
  const double activations = 4 * 16 * kParameters, gradients = 4 * 4 * kParameters;
  job.layout.micro_batch = 1;
  job.layout.global_batch = 2;
  const Memory one = simulate_step(job).peak();
  EXPECT_EQ(one.gradients, 0);
  EXPECT_NEAR(one.activations, activations, 1);
  job.layout.global_batch = 4;
  const Memory two = simulate_step(job).peak();
  EXPECT_NEAR(two.gradients, gradients, 1);
  EXPECT_NEAR(two.activations, activations, 1);
  EXPECT_LE(bound_of(job).memory, two.total() * (1 + 1e-9));
}

// Weights once a host; the gradients of all ranks are read.
TEST(Memory, RanksOfOneHostHaveTheirShareAndMapTheRest) {
  const double parameters = 4 * kParameters;
  const Memory two = simulate_step(on_one_machine(2, 2)).peak();
  EXPECT_NEAR(two.weights, parameters * 4 / 2, 1);
  EXPECT_NEAR(two.gradients, parameters * 4, 1);
  EXPECT_NEAR(two.mapped, parameters * (4.0 / 2 + 4), 1);
  EXPECT_NEAR(two.resident(), two.total() + two.mapped, 1);
  Job job = on_one_machine(4, 4);
  EXPECT_LE(bound_of(job).memory, simulate_step(job).peak().total() * (1 + 1e-9));
  job.layout.dp = 1;
  job.layout.fsdp = 4;
  job.layout.zero_stage = 3;
  const Memory sharded = simulate_step(job).peak();
  EXPECT_NEAR(sharded.weights, parameters * 4 / 4, 1);
  EXPECT_NEAR(sharded.gradients, parameters * 4, 1);
  EXPECT_NEAR(sharded.mapped, 2 * parameters * 4 * 3 / 4, 1);
  EXPECT_LE(bound_of(job).memory, sharded.total() * (1 + 1e-9));
  EXPECT_EQ(simulate_step(on_one_machine(1, 1)).peak().mapped, 0);
}

TEST(Measured, RefusesTimesAndSpeedsThatCannotBe) {
  Job job = on_one_machine(2, 2);
  job.measured.compute = -1;
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument, "measured times");
  job.measured.compute = std::numeric_limits<double>::quiet_NaN();
  expect_refused([&] { bound_of(job); }, Errc::kInvalidArgument, "measured times");
  job.measured = {};
  job.measured.slowness = {1, 1, 1};
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument,
                 "the speeds of 3 ranks were measured, for 2 ranks");
  job.measured.slowness = {1, 0};
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument, "must be above 0");
  job.measured = {};
  job.measured.codecs["bf16"] = {.seconds = -1, .bytes = 0.5};
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument, "the costs of codec bf16");
}

// A rank reads the other ranks' gradients in place: (n - 1) / n of them on average.
TEST(Traffic, ReplicasOfOneHostReadEachOthersGradients) {
  EXPECT_NEAR(simulate_step(on_one_machine(2, 2)).traffic, 4 * kParameters * 4 / 2, 1);
  EXPECT_NEAR(simulate_step(on_one_machine(4, 4)).traffic, 4 * kParameters * 4 * 3 / 4, 1);
}

// An all-reduce of n bytes over w hosts sends 2 (w - 1) / w n bytes.
TEST(Traffic, ReplicasOnSeveralHostsAllReduceTheirGradients) {
  Job job = on_one_machine(1, 1);
  job.cluster.nodes[0].count = 4;
  job.layout.dp = 4;
  job.layout.global_batch = 16;
  EXPECT_NEAR(simulate_step(job).traffic, 2.0 * 3 / 4 * 4 * kParameters * 4, 1);
}

TEST(Traffic, StagesSendOutputsAheadAndGradientsBack) {
  Job job = on_one_machine(4, 4);
  job.layout.dp = 1;
  job.layout.pp = 4;
  // Two messages over each of three boundaries, for every micro-batch of two samples.
  constexpr double kBytes = 8 * 3 * 2 * 2000 / 4;
  EXPECT_NEAR(simulate_step(job).traffic, kBytes, 1) << "read in place";
  job.cluster.nodes[0].devices = job.cluster.nodes[0].processors = 1;
  job.cluster.nodes[0].count = 4;
  EXPECT_NEAR(simulate_step(job).traffic, kBytes, 1);
}

TEST(Traffic, OneRankSendsNothing) {
  Job job = on_one_machine(1, 1);
  EXPECT_EQ(simulate_step(job).traffic, 0);
}

}  // namespace measured_test
}  // namespace weft::plan
