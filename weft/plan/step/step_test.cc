// The simulated step against formulas and published times.
#include "weft/plan/step/step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/plan/step/bound.h"

namespace weft::plan {
namespace step_test {

using schedule::pipeline::Algorithm;

// A model of equal layers whose embedding and head cost next to nothing.
Job uniform(int stages, int micro_batches) {
  Job job;
  job.model = default_model("gpt");
  job.model.layers = 16;
  job.model.hidden = 2048;
  job.model.heads = 16;
  job.model.vocab = 8;
  job.cluster = cluster_of_system("Selene DGX A100", std::max(1, stages / 8), std::min(8, stages));
  job.software = software("megatron");
  job.software.step_overhead = 0;
  job.layout.pp = stages;
  job.layout.micro_batch = 1;
  job.layout.global_batch = micro_batches;
  job.layout.precision = Precision::kFp16;
  for (NodeType& type : job.cluster.nodes) {
    type.intra.bandwidth = type.inter.bandwidth = 1e15;
    type.intra.latency = type.inter.latency = 0;
  }
  return job;
}

double bubble_share(const Job& job) {
  const Step step = simulate_step(job);
  return step.parts.bubble / (step.parts.compute + step.parts.recompute + step.parts.pipeline);
}

// GPipe and 1F1B: (p-1)/m. Interleaved: (p-1)/(vm). Narayanan et al. SC 2021, section 2.2.
TEST(Step, BubblesOfEqualStagesAreThoseOfTheFormulas) {
  for (const auto& [p, m] : {std::pair{4, 8}, {8, 16}, {2, 32}}) {
    Job job = uniform(p, m);
    const double formula = static_cast<double>(p - 1) / m;
    EXPECT_NEAR(bubble_share(job), formula, 0.03 * formula + 0.01) << p << ' ' << m;
    job.layout.schedule = Algorithm::kGPipe;
    EXPECT_NEAR(bubble_share(job), formula, 0.03 * formula + 0.01);
    job.layout.schedule = Algorithm::kInterleaved;
    job.layout.virtual_stages = 2;
    EXPECT_NEAR(bubble_share(job), formula / 2, 0.03 * formula + 0.01);
  }
}

// build_model() in nanotron's models/base.py: a stage ends with the block whose sum passes its
// share. 24 layers and a head of 2.45 layers over 8 stages: 3.3 layers are a share.
TEST(Step, StagesOfNanotronEndWithTheBlockThatPassesTheirShare) {
  Job job;
  job.model = default_model("llama");
  job.model.layers = 24;
  job.model.hidden = 2048;
  job.model.ffn = 4096;
  job.model.heads = job.model.kv_heads = 32;
  job.model.vocab = 50257;
  job.model.tied = true;
  job.cluster = cluster_of_system("DGX H100", 1);
  job.software = software("nanotron");
  job.layout.pp = 8;
  job.layout.global_batch = 8;
  const Step step = simulate_step(job);
  std::vector<int> ends;
  for (const StageReport& stage : step.stages) ends.push_back(stage.last_block);
  EXPECT_EQ(ends, (std::vector<int>{5, 8, 11, 15, 18, 21, 25, 26}));  // Block 0: the embedding.
}

TEST(Step, PartsAddUpToTheStep) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    Job job = uniform(8, 32);
    job.layout.recompute = recompute;
    const Step step = simulate_step(job);
    EXPECT_NEAR(step.parts.sum(), step.seconds, 1e-9 * step.seconds);
    EXPECT_GT(step.seconds, 0);
  }
}

// The steady state of a long step repeats: the shortened simulation takes as long as the schedule
// of all micro-batches, played with the same costs.
TEST(Step, OfManyMicroBatchesIsExtendedFromItsSteadyState) {
  namespace pipeline = schedule::pipeline;
  for (const Algorithm algorithm :
       {Algorithm::kOneForwardOneBackward, Algorithm::kInterleaved, Algorithm::kGPipe}) {
    Job job = uniform(4, 400);
    job.layout.schedule = algorithm;
    job.layout.virtual_stages = algorithm == Algorithm::kInterleaved ? 2 : 1;
    const Step step = simulate_step(job);
    EXPECT_GT(step.left_out, 0);
    std::vector<pipeline::Costs> costs;
    for (std::size_t s = 0; s < step.stages.size(); ++s) {
      const StageReport& stage = step.stages[s];
      const double back = s == 0 ? 0 : step.stages[s - 1].message;
      costs.push_back({.forward = stage.forward + stage.message,
                       .backward_input = stage.backward / 2 + back,
                       .backward_weight = stage.backward / 2});
    }
    const auto whole = pipeline::make({.algorithm = algorithm,
                                       .ranks = 4,
                                       .micro_batches = 400,
                                       .virtual_stages = job.layout.virtual_stages});
    const double played = pipeline::play_stages(whole, costs).makespan;
    const double tail = step.parts.gradients + step.parts.sharding + step.parts.optimizer;
    EXPECT_NEAR(step.seconds - tail, played, 1e-6 * played) << to_string(algorithm);
  }
}

// Rajbhandari et al. SC 2020, figure 1: 7.5B parameters on 64 devices.
TEST(Step, StatesOfZeroStagesAreThoseOfThePaper) {
  Job job;
  job.model.only_parameters = 7.5e9;
  job.cluster = cluster_of_accelerator("V100 SXM2/SXM3 32GB", 64, 1);
  job.software = software("megatron");
  job.layout.dp = 64;
  job.layout.global_batch = 64;
  job.layout.precision = Precision::kFp16;
  const double expected[] = {120e9, 31.4e9, 16.6e9, 1.88e9};
  for (int stage = 0; stage <= 3; ++stage) {
    job.layout.zero_stage = stage;
    const Step step = simulate_step(job);
    EXPECT_NEAR(step.peak().states(), expected[stage], 0.005 * expected[stage]);
    EXPECT_EQ(step.fits, stage == 2 || stage == 3 || (stage == 1 && expected[1] < 32e9));
    EXPECT_EQ(step.seconds, 0);
  }
}

// 1F1B: the first stage holds p micro-batches, the last one holds one; GPipe holds all (Narayanan
// et al. SC 2021, section 2.2.1).
TEST(Step, ActivationsOfAStageAreThoseOfTheMicroBatchesThatItsScheduleHolds) {
  Job job = uniform(4, 16);
  const Step one = simulate_step(job);
  const double each = one.memory[3].activations;
  EXPECT_NEAR(one.memory[1].activations / each, 3, 0.05);
  job.layout.schedule = Algorithm::kGPipe;
  const Step all = simulate_step(job);
  EXPECT_NEAR(all.memory[1].activations / each, 16, 0.3);
  EXPECT_LT(one.memory[0].seconds, one.seconds);
}

// act_recompute_table4_layer_times.csv: 22B, one layer, 8 ranks, micro-batch 4.
TEST(Step, TimesOfOneLayerAreThoseOfKorthikantiWithinEightPercent) {
  Job job;
  job.model = default_model("gpt");
  job.model.hidden = 6144;
  job.model.heads = 64;
  job.model.sequence = 2048;
  job.model.vocab = 51200;
  job.cluster = cluster_of_system("Selene DGX A100", 1);
  job.software = software("megatron");
  job.layout = {.tp = 8, .micro_batch = 4, .global_batch = 4, .precision = Precision::kFp16};
  const auto layer = [&](Recompute recompute, bool sequence) {
    job.layout.recompute = recompute;
    job.layout.sequence_parallel = sequence;
    job.model.layers = 2;
    const StageReport two = simulate_step(job).stages[0];
    job.model.layers = 1;
    const StageReport one = simulate_step(job).stages[0];
    return std::pair{two.forward - one.forward, two.backward - one.backward};
  };
  const auto expect = [&](Recompute recompute, bool sequence, double forward, double backward) {
    const auto [f, b] = layer(recompute, sequence);
    EXPECT_NEAR(f, forward * 1e-3, 0.08 * forward * 1e-3);
    EXPECT_NEAR(b, backward * 1e-3, 0.08 * backward * 1e-3);
  };
  expect(Recompute::kNone, false, 7.7, 11.9);
  expect(Recompute::kNone, true, 7.2, 11.8);
  expect(Recompute::kFull, false, 7.7, 19.5);
  expect(Recompute::kSelective, false, 7.7, 13.2);
  expect(Recompute::kSelective, true, 7.2, 13.1);
}

// Gradients: 2 (d-1)/d P elements (ring all-reduce); ZeRO-1 moves as much.
TEST(Step, GradientsTravelOnceOverTheReplicas) {
  Job job = uniform(1, 64);
  job.cluster = cluster_of_system("Selene DGX A100", 8);
  job.layout.pp = 1;
  job.layout.dp = 64;
  const Step plain = simulate_step(job);
  const double elements = parameters(job.model), seconds = 2 * 63.0 / 64 * elements * 2 / 192e9;
  EXPECT_NEAR(plain.parts.gradients, seconds, 0.1 * seconds + 1e-3);
  job.layout.zero_stage = 1;
  const Step sharded = simulate_step(job);
  EXPECT_NEAR(sharded.parts.gradients + sharded.parts.sharding, plain.parts.gradients,
              0.1 * plain.parts.gradients);
  EXPECT_LT(sharded.parts.optimizer, 0.1 * plain.parts.optimizer);
  EXPECT_GT(sharded.parts.sharding_after, 0);
  EXPECT_EQ(sharded.parts.sharding_after, sharded.parts.sharding) << "one gather of weights a step";
}

TEST(Step, CodecsShrinkTheExchangeOfGradients) {
  Job job = uniform(1, 16);
  job.cluster = cluster_of_system("AWS p3.16xlarge", 2);
  job.layout.pp = 1;
  job.layout.dp = 16;
  const double plain = simulate_step(job).parts.gradients;
  job.layout.codec = "int8";
  EXPECT_NEAR(simulate_step(job).parts.gradients / plain, codec_ratio("int8"), 0.02);
}

// Weights in float32 instead of gradients in 16 bits, every 16 steps, and nothing hides.
TEST(Step, StrategiesExchangeWeightsOnceAPeriod) {
  Job job = uniform(1, 16);
  job.cluster = cluster_of_system("AWS p3.16xlarge", 2);
  job.layout.pp = 1;
  job.layout.dp = 16;
  const Step plain = simulate_step(job);
  job.layout.rule = parse_rule("local_sgd:16");
  const Step local = simulate_step(job);
  job.layout.rule.period = 32;
  const Step longer = simulate_step(job);
  EXPECT_LT(local.parts.gradients, 0.3 * plain.parts.gradients);
  EXPECT_NEAR(longer.parts.gradients / local.parts.gradients, 0.5, 1e-6);
  EXPECT_NEAR(longer.traffic / local.traffic, 0.5, 1e-6);
  job.layout.codec = "int8";
  EXPECT_NEAR(simulate_step(job).parts.gradients / longer.parts.gradients, codec_ratio("int8"),
              0.02);
  const double bytes = 4 * parameters(job.model);
  EXPECT_NEAR(local.peak().optimizer - plain.peak().optimizer, bytes, 1e-3 * bytes);
  job.layout.rule.name = "diloco";
  EXPECT_NEAR(simulate_step(job).peak().optimizer - plain.peak().optimizer, 3 * bytes,
              1e-2 * bytes);
  EXPECT_EQ(to_string(parse_rule("diloco:100")), "diloco:100");
  EXPECT_EQ(parse_rule("sync"), Rule{});
  for (const char* wrong : {"local_sgd", "local_sgd:", "local_sgd:0", "local_sgd:4x", "sync:3"})
    EXPECT_THAT(refusal([&] { parse_rule(wrong); }), testing::HasSubstr("as in local_sgd:16"));
  EXPECT_THAT(refusal([] { parse_rule("gossip:1"); }), testing::HasSubstr("cannot be planned"));
  job.layout.zero_stage = 1;
  EXPECT_THAT(refusal([&] { simulate_step(job); }), testing::HasSubstr("without cp and ep"));
}

Cluster with_second(Cluster cluster, const Cluster& second) {
  cluster.accelerators.push_back(second.accelerators[0]);
  cluster.nodes.push_back(second.nodes[0]);
  cluster.nodes[1].accelerator = 1;
  return cluster;
}

// The ranks of fsdp work together. The L40S is faster than the A100 in bf16, and has less memory.
TEST(Step, OfUnequalRanksThatWorkTogetherFitsTheSmallestDevice) {
  const Cluster small = cluster_of_accelerator("L40S", 1, 8),
                large = cluster_of_accelerator("A100 SXM 80GB", 1, 8);
  for (const bool small_first : {true, false}) {
    Job job = uniform(1, 16);
    job.cluster = small_first ? with_second(small, large) : with_second(large, small);
    job.layout = {.fsdp = 16, .zero_stage = 3, .global_batch = 16, .precision = Precision::kBf16};
    EXPECT_EQ(simulate_step(job).capacity, std::vector<double>{48 * kGiB});
    job.model.only_parameters = 1e9;
    EXPECT_EQ(simulate_step(job).capacity, std::vector<double>{48 * kGiB});
  }
}

// Each replica has a device of its own. The RTX 4090 is faster than the V100, and has less memory.
TEST(Step, OfUnequalReplicasFitsOnlyIfEachOfThemFitsItsDevice) {
  const Cluster slow = cluster_of_accelerator("V100 PCIe 32GB", 1, 1),
                fast = cluster_of_accelerator("RTX 4090 24GB", 1, 1);
  for (const bool slow_first : {true, false}) {
    Job job = uniform(1, 16);
    job.cluster = slow_first ? with_second(slow, fast) : with_second(fast, slow);
    job.layout = {.dp = 2, .micro_batch = 4, .global_batch = 16, .precision = Precision::kFp16};
    const double needs = simulate_step(job).peak().total();
    job.cluster.accelerators[slow_first ? 0 : 1].memory = 1.2 * needs;
    job.cluster.accelerators[slow_first ? 1 : 0].memory = 0.8 * needs;
    const Step step = simulate_step(job);
    EXPECT_FALSE(step.fits);
    EXPECT_NEAR(step.short_by, 0.2 * needs, 1e-6 * needs);
    EXPECT_EQ(step.capacity, std::vector<double>{0.8 * needs});
  }
}

// The rank with the most memory may fit, and another one not.
TEST(Step, NamesTheRankThatFillsMostOfItsDevice) {
  Step step;
  step.memory = {{.weights = 60 * kGiB}, {.weights = 31 * kGiB}};
  step.capacity = {80 * kGiB, 32 * kGiB};
  EXPECT_EQ(step.fullest(), 1U);
  EXPECT_EQ(step.peak().weights, 60 * kGiB);
}

// Two kinds of nodes: the slow one decides, until it gets a smaller share of the batch.
TEST(Step, OfUnequalDevicesTakesAsLongAsTheSlowReplicaUnlessItsShareIsSmaller) {
  Job job = uniform(1, 64);
  job.cluster = with_second(cluster_of_system("Selene DGX A100", 1, 1),
                            cluster_of_accelerator("V100 SXM2/SXM3 32GB", 1, 1));
  job.layout = {.dp = 2, .micro_batch = 8, .global_batch = 64, .precision = Precision::kFp16};
  const double even = simulate_step(job).seconds;
  job.layout.shares = {1.5, 0.5};
  const double uneven = simulate_step(job).seconds;
  EXPECT_GT(even, 1.3 * uneven);
}

TEST(Step, StragglersAndDataLoadingMakeItLonger) {
  Job job = uniform(2, 8);
  const double alone = simulate_step(job).seconds;
  job.loading = 0.25;
  EXPECT_NEAR(simulate_step(job).seconds, alone + 0.25, 1e-9);
  job.noise = 0.05;
  EXPECT_GT(simulate_step(job).seconds, alone * 1.03 + 0.25);
}

// DGX-1: the pairs of ranks 0 and 1, 4 and 5 have one NVLink, the others two.
TEST(StepCache, KeepsGroupsApartWhoseLinksDiffer) {
  Job job = uniform(4, 16);
  job.cluster = cluster_of_system("DGX-1 V100", 1);
  job.layout.tp = 2;
  const Step alone = simulate_step(job);
  EXPECT_LT(alone.stages.at(1).forward, alone.stages.at(2).forward);
  StepCache cache;
  job.cache = &cache;
  for (int time = 0; time < 2; ++time) {
    const Step cached = simulate_step(job);
    for (std::size_t s = 0; s < alone.stages.size(); ++s)
      EXPECT_EQ(cached.stages.at(s).forward, alone.stages[s].forward) << s;
    EXPECT_EQ(cached.seconds, alone.seconds);
  }
}

TEST(Bound, IsNeverAboveTheSimulatedStep) {
  for (const Algorithm algorithm :
       {Algorithm::kOneForwardOneBackward, Algorithm::kInterleaved, Algorithm::kZeroBubbleV}) {
    for (const int m : {4, 7, 16, 200}) {
      Job job = uniform(4, m);
      job.layout.schedule = algorithm;
      job.layout.virtual_stages = algorithm == Algorithm::kOneForwardOneBackward ? 1 : 2;
      const Step step = simulate_step(job);
      const Bound bound = bound_of(job);
      EXPECT_LE(bound.seconds, step.seconds * (1 + 1e-9)) << to_string(algorithm) << ' ' << m;
      EXPECT_LE(bound.memory, step.peak().total() * (1 + 1e-9));
      EXPECT_GE(bound.seconds, 0.4 * step.seconds);
    }
  }
}

TEST(Layout, ThatDoesNotFitTheClusterIsRefusedWithTheNearest) {
  Job job = uniform(4, 16);
  job.layout.dp = 3;
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument,
                 "have 12 ranks, but the cluster has 4; use dp = 1");
  job = uniform(4, 16);
  job.layout.cuts = {3, 2, 9};
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument, "leaves it without blocks");
  job.layout.cuts = {3};
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument, "1 cuts for 4 stages");
  job = uniform(4, 16);
  job.layout.global_batch = 0;
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument, "global_batch = 0");
  job = uniform(4, 16);
  job.layout.virtual_stages = 8;
  job.layout.schedule = Algorithm::kInterleaved;
  expect_refused([&] { simulate_step(job); }, Errc::kInvalidArgument, "32 stages of 16 blocks");
  EXPECT_EQ(codec_ratio("bf16,ef=off"), 0.5);
  EXPECT_EQ(codec_ratio("int8:128,ef=on"), codec_ratio("int8:128"));
  EXPECT_THAT(refusal([] { codec_ratio("zip"); }), testing::HasSubstr("not known"));
  EXPECT_THAT(refusal([] { codec_ratio("threshold:0.001,ef=off"); }),
              testing::HasSubstr("cannot be planned: its bytes depend on the gradients"));
}

}  // namespace step_test
}  // namespace weft::plan
