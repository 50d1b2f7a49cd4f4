// The search finds what exhaustive enumeration finds, within its time, and explains itself.
#include "weft/plan/search/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/testing/in_time.h"
#include "weft/base/testing/refusal.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/plan/search/internal/refine.h"
#include "weft/plan/search/knee.h"
#include "weft/plan/search/no_layout.h"
#include "weft/plan/search/sensitivity.h"
#include "weft/plan/step/bound.h"

namespace weft::plan {
namespace search_test {

using schedule::pipeline::Algorithm;
using testing::HasSubstr;

Job job_on(const Cluster& cluster, std::int64_t layers, std::int64_t hidden) {
  Job job;
  job.model = default_model("gpt");
  job.model.layers = layers;
  job.model.hidden = hidden;
  job.model.heads = 16;
  job.model.vocab = 51200;
  job.model.sequence = 2048;
  job.cluster = cluster;
  job.software = software("weft");
  job.layout.precision = Precision::kBf16;
  job.layout.global_batch = 64;
  return job;
}

struct Best {
  double seconds = 0;
  int fitting = 0;
};

// Simulates every layout of the space.
Best exhaustive(const Job& job, const Space& space, double headroom) {
  Best best;
  Job one = job;
  for (const Layout& layout : layouts_of(job, space)) {
    one.layout = layout;
    try {
      const Step step = simulate_step(one);
      bool fits = true;
      for (std::size_t r = 0; r < step.memory.size(); ++r)
        fits = fits && step.memory[r].total() <= step.capacity[r] * (1 - headroom);
      if (!fits) continue;
      ++best.fitting;
      if (best.seconds == 0 || step.seconds < best.seconds) best.seconds = step.seconds;
    } catch (const Error&) {
      // A layout that cannot run.
    }
  }
  return best;
}

void expect_optimum(const Job& job, SearchOptions options) {
  options.refine = false;
  const Found found = search(job, options);
  const Best best = exhaustive(job, options.space, options.headroom);
  ASSERT_GT(best.fitting, 0);
  ASSERT_FALSE(found.best.empty());
  EXPECT_TRUE(found.complete);
  EXPECT_DOUBLE_EQ(found.best[0].step.seconds, best.seconds);
  EXPECT_LT(found.simulated, found.layouts);
}

TEST(Search, FindsTheOptimumOfExhaustiveEnumerationOnOneNode) {
  expect_optimum(job_on(cluster_of_system("DGX A100", 1, 4), 8, 2048), {});
}

// Memory decides: the model fits only if it is divided.
TEST(Search, FindsTheOptimumWhereMemoryIsShort) {
  Job job = job_on(cluster_of_system("AWS p3.16xlarge", 1, 4), 6, 4096);
  job.layout.precision = Precision::kFp16;
  job.layout.global_batch = 16;
  expect_optimum(job, {.headroom = 0});
}

// A node of A100 and one of V100.
Cluster unequal_nodes(int per_node) {
  Cluster mixed = cluster_of_accelerator("A100 SXM 80GB", 1, per_node);
  const Cluster slow = cluster_of_accelerator("V100 SXM2/SXM3 32GB", 1, per_node);
  mixed.accelerators.push_back(slow.accelerators[0]);
  mixed.nodes.push_back(slow.nodes[0]);
  mixed.nodes[1].accelerator = 1;
  return mixed;
}

TEST(Search, FindsTheOptimumOnUnequalNodes) {
  Job job = job_on(unequal_nodes(2), 6, 1024);
  job.layout.global_batch = 16;
  expect_optimum(job, {});
}

// The first stage has the embedding and most layers. The second device holds the head, and no more:
// the least memory of the best layout is above that of this device.
TEST(Search, FindsTheOptimumThatOnlyTheLargestDeviceCanHold) {
  SearchOptions options;
  options.refine = false;
  options.space.dp = options.space.fsdp = false;
  options.space.schedules = {Algorithm::kOneForwardOneBackward, Algorithm::kZeroBubbleH1};
  options.space.micro_batches = {1, 2};
  int beyond = 0;
  for (const std::int64_t hidden : {1536, 2048, 4096}) {
    Job job = job_on(unequal_nodes(1), 6, hidden);
    job.model.vocab = 200'000;
    job.model.sequence = 256;
    job.layout.precision = Precision::kFp16;
    job.layout.global_batch = 16;
    const Found roomy = search(job, options);
    ASSERT_FALSE(roomy.best.empty()) << hidden;
    const double needed = 1.01 * roomy.best[0].step.memory.at(1).total();
    job.cluster.accelerators[1].memory = needed / (1 - options.headroom);
    const Found found = search(job, options);
    ASSERT_FALSE(found.best.empty()) << hidden;
    EXPECT_TRUE(found.complete);
    EXPECT_DOUBLE_EQ(found.best[0].step.seconds,
                     exhaustive(job, options.space, options.headroom).seconds)
        << hidden;
    job.layout = found.best[0].layout;
    beyond += bound_of(job).memory > needed ? 1 : 0;
  }
  EXPECT_GT(beyond, 0);
}

TEST(SearchSlow, FindsTheOptimumOfExhaustiveEnumerationUpTo64Devices) {
  for (const int nodes : {2, 4, 8}) {
    Job job = job_on(cluster_of_system("DGX A100", nodes), 16, 4096);
    job.layout.global_batch = 128;
    SearchOptions options;
    options.space.schedules = {Algorithm::kOneForwardOneBackward, Algorithm::kZeroBubbleV};
    options.space.cp = false;
    expect_optimum(job, options);
  }
}

// Best first, with the reason why the others lose.
TEST(Search, TakesAStrategyWhereLinksAreSlow) {
  Job job = job_on(cluster_of_system("AWS p3.16xlarge", 2), 12, 1024);
  SearchOptions options;
  options.space.tp = options.space.pp = false;
  options.space.rules = {{}, {"local_sgd", 16}};
  const Found found = search(job, options);
  ASSERT_FALSE(found.best.empty());
  EXPECT_EQ(found.best[0].layout.rule.name, "local_sgd") << describe(found.best[0].layout);
  EXPECT_NEAR(found.best[0].step.seconds, exhaustive(job, options.space, options.headroom).seconds,
              1e-9);
  options.space.rules = {{"gossip", 1}};
  EXPECT_THAT(refusal([&] { search(job, options); }), HasSubstr("cannot be planned"));
}

// All layouts with replicas use a given codec. Layouts without replicas remain, without it.
TEST(Search, PlansForTheCodecThatIsGiven) {
  const Job job = job_on(cluster_of_system("AWS p3.16xlarge", 1), 8, 1024);
  const auto with = [&](std::vector<std::string> codecs) {
    Space space;
    space.codecs = std::move(codecs);
    return layouts_of(job, space);
  };
  const auto all = with({"none"}), given = with({"bf16"});
  EXPECT_EQ(given.size(), all.size());
  for (const Layout& layout : given) {
    const bool has_replicas = layout.dp * layout.ep * layout.cp > 1;
    EXPECT_EQ(layout.codec, has_replicas ? "bf16" : "none") << describe(layout);
  }
}

TEST(Search, TakesACodecWhereLinksAreSlowAndEncodingIsNot) {
  Job job = job_on(cluster_of_system("AWS p3.16xlarge", 2), 12, 1024);
  SearchOptions options;
  options.space.tp = options.space.pp = options.space.fsdp = false;
  options.space.codecs = {"none", "bf16", "int8:64"};
  const auto best = [&] { return search(job, options).best.at(0).layout.codec; };
  EXPECT_EQ(best(), "int8:64");
  job.measured.codecs["int8:64"] = {.seconds = 1e-9, .bytes = 0.26};
  EXPECT_EQ(best(), "bf16");
  job.measured.codecs["bf16"] = {.seconds = 1e-9, .bytes = 0.5};
  EXPECT_EQ(best(), "none");
}

TEST(Search, RanksTheNextBestAndSaysWhyTheyLose) {
  const Found found = search(job_on(cluster_of_system("DGX A100", 2), 16, 4096), {});
  ASSERT_EQ(found.best.size(), 4U);
  for (std::size_t i = 1; i < found.best.size(); ++i) {
    EXPECT_GE(found.best[i].score, found.best[i - 1].score * 0.999);
    EXPECT_THAT(found.best[i].why, HasSubstr("%"));
  }
  EXPECT_TRUE(found.best[0].why.empty());
}

TEST(Search, OfAModelThatNothingHoldsGivesTheNearestAndWhatItLacks) {
  const Found found = search(job_on(cluster_of_system("AWS p3.16xlarge", 1, 4), 48, 12288), {});
  EXPECT_TRUE(found.best.empty());
  ASSERT_EQ(found.nearest.size(), 1U);
  EXPECT_GT(found.nearest[0].step.short_by, 100e9);
}

TEST(Search, EndsWhenItsTimeIsOver) {
  double time = 0;
  SearchOptions options;
  options.clock = [&] { return time += 0.1; };
  options.seconds = 1;
  const Found found = search(job_on(cluster_of_system("DGX A100", 2), 16, 4096), options);
  EXPECT_FALSE(found.complete);
  EXPECT_LE(time, 2);
}

// More memory is free if memory is the goal.
TEST(Search, MinimizesWhatTheGoalNames) {
  const Job job = job_on(cluster_of_system("DGX A100", 1, 4), 8, 2048);
  const Found fast = search(job, {.goal = Goal::kTime, .refine = false}),
              small = search(job, {.goal = Goal::kMemory, .refine = false});
  EXPECT_LT(small.best[0].step.peak().total(), fast.best[0].step.peak().total());
  EXPECT_LE(fast.best[0].step.seconds, small.best[0].step.seconds);
  expect_refused([] { parse_goal("speed"); }, Errc::kInvalidArgument, "use time, cost");
}

// Hamilton's method: the parts after the point decide who gets the samples that are left.
TEST(DivideSamples, RoundsByTheLargestRemaindersSoThatNoSampleIsLostOrAdded) {
  using internal::divide_samples;
  EXPECT_EQ(divide_samples({1, 1, 1}, 10), (std::vector{4, 3, 3}));
  EXPECT_EQ(divide_samples({2, 1, 1}, 6), (std::vector{3, 2, 1}));
  EXPECT_EQ(divide_samples({1, 1000}, 4), (std::vector{1, 3}));
  EXPECT_EQ(divide_samples({1, 1, 1e6}, 6), (std::vector{1, 1, 4}));
  for (int replicas = 1; replicas <= 40; ++replicas) {
    std::vector<double> speeds;
    for (int r = 0; r < replicas; ++r) speeds.push_back(1 + r * r % 7 * 0.3);
    const std::vector<int> shares = divide_samples(speeds, 3 * replicas);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0), 3 * replicas);
    EXPECT_GE(*std::min_element(shares.begin(), shares.end()), 1);
  }
}

// A recipe (train/planner/planning.h) holds these fields, and the cuts of transformers alone.
TEST(Search, RefinesTheBestLayoutToOneThatARecipeCanExpress) {
  SearchOptions options;
  options.space.dp = options.space.fsdp = options.space.tp = options.space.cp = false;
  options.space.recomputes = {Recompute::kFull};
  Job job = job_on(cluster_of_system("DGX A100", 1, 4), 8, 2048);
  const LayoutCandidate best = search(job, options).best.at(0);
  const Layout& l = best.layout;
  EXPECT_EQ(l.pp, 4);
  job.layout = {.dp = l.dp,
                .fsdp = l.fsdp,
                .tp = l.tp,
                .pp = l.pp,
                .cp = l.cp,
                .ep = l.ep,
                .zero_stage = l.zero_stage,
                .schedule = l.schedule,
                .virtual_stages = l.virtual_stages,
                .micro_batch = l.micro_batch,
                .global_batch = l.global_batch,
                .recompute = l.recompute,
                .precision = l.precision,
                .cuts = l.cuts};
  EXPECT_EQ(l.recompute, Recompute::kFull);
  EXPECT_DOUBLE_EQ(simulate_step(job).seconds, best.step.seconds);
  job = job_on(unequal_nodes(1), 1, 1024);
  job.model = default_model("resnet50");
  job.layout.precision = Precision::kFp16;
  EXPECT_TRUE(search(job, options).best.at(0).layout.cuts.empty());
}

// Issue of unequal devices: shares of the batch by speed make the step shorter.
TEST(Search, GivesUnequalReplicasUnequalSharesOfTheBatch) {
  Cluster mixed = cluster_of_accelerator("A100 SXM 80GB", 1, 1);
  const Cluster slow = cluster_of_accelerator("V100 SXM2/SXM3 32GB", 1, 1);
  mixed.accelerators.push_back(slow.accelerators[0]);
  mixed.nodes.push_back(slow.nodes[0]);
  mixed.nodes[1].accelerator = 1;
  Job job = job_on(mixed, 4, 1024);
  job.model.sequence = 256;
  job.layout.precision = Precision::kFp16;
  SearchOptions options;
  options.space.pp = options.space.tp = options.space.fsdp = false;
  options.space.micro_batches = {32};
  options.headroom = 0;
  options.refine = false;
  const double even = search(job, options).best[0].step.seconds;
  options.refine = true;
  const Found refined = search(job, options);
  ASSERT_EQ(refined.best[0].layout.shares.size(), 2U);
  EXPECT_GT(refined.best[0].layout.shares[0], refined.best[0].layout.shares[1]);
  EXPECT_GT(even, 1.2 * refined.best[0].step.seconds);
}

Found nearest_of(std::vector<Memory> memory, std::vector<double> capacity) {
  Found found;
  found.nearest.resize(1);
  found.nearest[0].step.memory = std::move(memory);
  found.nearest[0].step.capacity = std::move(capacity);
  return found;
}

TEST(NoLayout, IsExplainedByTheMemoryOfTheFullestDeviceAndTheShareThatStaysFree) {
  const Job job = job_on(cluster_of_system("DGX A100", 1), 8, 2048);
  const Found equal = nearest_of({{.weights = 39 * kGiB}}, {40 * kGiB});
  EXPECT_THAT(why_no_layout(equal, job, 0.05),
              HasSubstr("needs 39 GiB of a device, which has 40 GiB, of which 5 % stay free: 1 GiB "
                        "short"));
  const Found unequal =
      nearest_of({{.weights = 60 * kGiB}, {.weights = 33 * kGiB}}, {80 * kGiB, 32 * kGiB});
  EXPECT_THAT(why_no_layout(unequal, job, 0),
              HasSubstr("needs 33 GiB of a device, which has 32 GiB: 1 GiB short"));
  EXPECT_THAT(why_no_layout({}, job, 0.05),
              HasSubstr("divides a batch of 64 samples and the blocks of the model over all 8"));
}

TEST(NoLayout, BecauseTheTimeRanOutIsNoStatementAboutMemory) {
  const Job job = job_on(cluster_of_system("DGX A100", 2), 16, 4096);
  double time = 0;
  SearchOptions options;
  options.clock = [&] { return time += 10; };
  const Found found = search(job, options);
  EXPECT_TRUE(found.best.empty());
  EXPECT_THAT(why_no_layout(found, job, options.headroom),
              HasSubstr("the time of the search ran out before it found a layout of 2 nodes"));
  const Knee knee = find_knee(job, options, 2);
  EXPECT_EQ(knee.nodes, 0);
  EXPECT_THAT(knee.text, HasSubstr("the time ran out before a layout was found"));
}

// A batch of 2 samples has no layout on four nodes without tp and pp.
TEST(Knee, SaysWhereNoLayoutFitsThatThereIsNone) {
  Job job = job_on(cluster_of_system("DGX A100", 2, 1), 8, 2048);
  job.model.sequence = 8192;
  job.layout.global_batch = 2;
  SearchOptions options;
  options.space.tp = options.space.pp = options.space.cp = options.space.fsdp = false;
  const Knee knee = find_knee(job, options, 2);
  EXPECT_THAT(knee.text, HasSubstr("; on 4 nodes, no layout fits")) << knee.text;
}

// Two nodes halve what the layout of least memory needs.
TEST(NoLayout, TheNumberOfNodesThatFitIsOfTheGoalAndTheSpaceOfTheSearch) {
  Job job = job_on(cluster_of_system("DGX A100", 1, 1), 8, 1024);
  job.model.vocab = 1000;
  SearchOptions options{.goal = Goal::kMemory};
  options.space.recomputes = {Recompute::kFull};
  options.space.micro_batches = {1};
  const double needs = search(job, options).best.at(0).step.peak().total();
  job.cluster.accelerators[0].memory = 0.9 * needs;
  EXPECT_TRUE(search(job, options).best.empty());
  EXPECT_THAT(nodes_that_fit(job, options),
              testing::AllOf(testing::StartsWith("on 2 nodes, "),
                             testing::EndsWith("full recomputation fits")));
  job.cluster = unequal_nodes(1);
  EXPECT_EQ(nodes_that_fit(job, options), "");
}

// 3 nodes are log2(3) = 1.58 doublings of one: 1.5^1.58 = 1.9.
TEST(Knee, CountsDoublingsWhereTheNumberOfNodesTriples) {
  const auto nodes = [](double samples_per_s) {
    return knee_of({{.nodes = 1, .devices = 8, .seconds = 1, .samples_per_s = 100},
                    {.nodes = 3, .devices = 24, .seconds = 1, .samples_per_s = samples_per_s}})
        .nodes;
  };
  EXPECT_EQ(nodes(160), 1);
  EXPECT_EQ(nodes(185), 1);
  EXPECT_EQ(nodes(195), 3);
}

TEST(Knee, OfAFixedBatchComesWhereMoreNodesNoLongerHelp) {
  Job job = job_on(cluster_of_system("DGX A100", 2, 2), 4, 2048);
  job.layout.global_batch = 16;
  const Knee knee = find_knee(job, {}, 2);
  ASSERT_GE(knee.points.size(), 3U);
  for (std::size_t i = 1; i < knee.points.size(); ++i) {
    if (knee.points[i].seconds <= 0) continue;
    EXPECT_LE(knee.points[i].efficiency, knee.points[i - 1].efficiency * 1.05);
  }
  EXPECT_THAT(knee.text, HasSubstr("node"));
}

TEST(Sensitivity, OfAComputeBoundStepIsLargestForTheMatrixUnits) {
  Job job = job_on(cluster_of_system("DGX A100", 1), 8, 4096);
  job.layout.dp = 8;
  job.layout.micro_batch = 8;
  const auto changes = sensitivity(job);
  ASSERT_GE(changes.size(), 6U);
  EXPECT_THAT(changes[0].what, HasSubstr("matrix units x 2"));
  for (const Change& change : changes) EXPECT_LE(change.throughput, changes[0].throughput * 1.001);
}

// The promise of the issue, on one core.
TEST(SearchTiming, OfAThousandDevicesTakesLessThanTenSeconds) {
  Job job = job_on(cluster_of_system("DGX A100", 128), 96, 12288);
  job.model.heads = 96;
  job.layout.global_batch = 1536;
  expect_within(std::chrono::seconds(10), [&](SlowestRank& slowest) {
    const auto start = Deadline::Clock::now();
    const Found found = search(job, {});
    EXPECT_TRUE(found.complete);
    EXPECT_FALSE(found.best.empty());
    slowest.report_since(start);
  });
}

}  // namespace search_test
}  // namespace weft::plan
