// Runs that choose their layout: options, and a program of two ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/testing/decimal_comma.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/plan/cluster/catalog.h"
#include "weft/train/internal/plan_keys.h"
#include "weft/train/internal/run_plan.h"
#include "weft/train/planner/internal/auto_planner.h"
#include "weft/train/planner/internal/plan_candidates.h"
#include "weft/train/planner/planning.h"
#include "weft/train/recipe.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace auto_plan_test {

namespace nn = torch::nn;
using namespace std::chrono_literals;

TEST(RecipeFragment, HasTheSameNumbersInEachLocale) {
  const plan::Layout layout{.dp = 2, .global_batch = 4096};
  const DecimalComma locale;
  EXPECT_THAT(recipe_fragment(layout, {}), ::testing::HasSubstr("\nmicro_batches = 2048\n"));
}

TEST(PlanKeys, AFileOfAProgramMayAskForAPrediction) {
  const TempDir folder;
  write_file_atomic(folder / "train.toml", "[parallel]\nplan = \"predict\"\nfsdp = 2\n");
  Options options = load_options(folder / "train.toml");
  EXPECT_TRUE(options.predict_plan);
  EXPECT_EQ(options.mesh, "dp=0,fsdp=2");
  EXPECT_EQ(config_of(options).get_string("parallel.plan"), "predict");
  options.components.planner = &planner_component();
  const internal::RunPlan plan(options, config_of(options), false);
  EXPECT_TRUE(plan.is_on());
  EXPECT_FALSE(plan.is_auto());
  EXPECT_FALSE(internal::RunPlan({}, config_of({}), false).is_on());
}

TEST(PlanKeys, ACodecThatIsGivenIsPlannedFor) {
  Config config(recipe_schema());
  config.set("parallel.plan=auto");
  EXPECT_EQ(space_of(config).codecs, std::vector<std::string>{"none"});
  config.set("parallel.codec=auto");
  EXPECT_EQ(space_of(config).codecs, std::vector<std::string>{"none"});
  config.set("parallel.codec=int8:64");
  EXPECT_EQ(space_of(config).codecs, std::vector<std::string>{"int8:64"});
}

TEST(PlannedLayout, TheFastestOfEachCodecIsTriedFirst) {
  std::vector<internal::PlannedLayout> layouts;
  for (const auto& [codec, seconds] : {std::pair("int4", 1.0),
                                       {"int4", 1.1},
                                       {"none", 1.6},
                                       {"int4", 1.05},
                                       {"bf16", 1.3},
                                       {"bf16", 1.2},
                                       {"int4", 1.15},
                                       {"int4", 1.25},
                                       {"int8", 1.4}})
    layouts.push_back({.layout = codec + std::to_string(std::lround(100 * seconds)),
                       .codec = codec,
                       .seconds = seconds});
  internal::prune(layouts);
  std::vector<std::string> kept;
  for (const auto& one : layouts) kept.push_back(one.layout);
  EXPECT_THAT(
      kept, testing::ElementsAre("int4100", "bf16120", "int8140", "int4105", "int4110", "int4115"));
}

TEST(PlannedLayout, ThatDoesNotFitIsRefusedWithOneThatDoes) {
  plan::Layout layout;
  layout.dp = 2;
  layout.micro_batch = 512;
  plan::Step step;
  step.memory = {{.weights = 3 * 1073741824.0}};
  step.capacity = {2 * 1073741824.0};
  plan::Found found;
  EXPECT_EQ(internal::does_not_fit(layout, step, found),
            "parallel.plan = \"predict\": dp 2, micro-batch 512, needs 3 GiB of a rank, which has "
            "2 GiB: 1 GiB short; no other layout fits either; use more ranks or a smaller batch");
  found.complete = false;
  EXPECT_THAT(internal::does_not_fit(layout, step, found),
              testing::HasSubstr("1 GiB short; the time ran out before another layout"));
  found.best = {{.layout = layout, .step = step}};
  found.best[0].layout.micro_batch = 8;
  EXPECT_THAT(internal::does_not_fit(layout, step, found),
              testing::HasSubstr("1 GiB short; this fits: dp 2, micro-batch 8"));
}

TEST(PlannedLayout, IsMissingForTheReasonThatTheSearchHas) {
  plan::Job job;
  job.cluster = plan::cluster_of_accelerator("CPU core (AVX2)", 1, 2);
  plan::Found found;
  found.nearest.resize(1);
  found.nearest[0].step.memory = {{.weights = 39 * plan::kGiB}};
  found.nearest[0].step.capacity = {40 * plan::kGiB};
  EXPECT_THAT(internal::too_large(found, job),
              testing::HasSubstr("has 40 GiB, of which 5 % stay free: 1 GiB short"));
  found.complete = false;
  EXPECT_THAT(internal::too_large(found, job),
              testing::HasSubstr("the time of the search ran out"));
}

// `pause`: of forward for a sample, at the start and at the end. Replicas then do a step in the
// shortest time, on a busy machine too.
Task two_layers(std::chrono::microseconds pause = {}) {
  const auto wait = [pause](const torch::Tensor& x) {
    if (pause.count() > 0) std::this_thread::sleep_for(pause * x.size(0));
    return x;
  };
  nn::Sequential net(nn::Functional(wait), nn::Linear(16, 32), nn::BatchNorm1d(32), nn::ReLU(),
                     nn::Linear(32, 4), nn::Functional(wait));
  const torch::NoGradGuard no_grad;
  std::int64_t next = 0;
  for (torch::Tensor& p : net->parameters())
    p.copy_(torch::linspace(-1, 1, p.numel()).view(p.sizes()) * static_cast<double>(++next) / 8);
  Task task(parallel::blocks_of(net), [](const torch::Tensor& y, const torch::Tensor& target) {
    return torch::cross_entropy_loss(y, target);
  });
  const auto x = torch::linspace(-1, 1, 64 * 16).view({64, 16}).sin();
  task.train = samples(x, x.sum(1).mul(10).to(torch::kLong).remainder(4));
  return task;
}

// Measuring leaves weights and running statistics as the program has made them.
TEST(AutoPlan, AProgramOfTwoRanksTrainsFromItsOwnValues) {
  const TempDir folder;
  comm::replicate(
      2,
      [&](const Group& world) {
        std::map<std::string, torch::Tensor> before, after;
        const auto blocks = two_layers();
        for (const auto& spec : blocks.model.blocks) {
          const auto module = spec.make({}).module;
          for (const auto& p : module->named_parameters()) before[p.key()] = p.value().clone();
          for (const auto& b : module->named_buffers()) before[b.key()] = b.value().clone();
        }
        Options options;
        options.mesh = "auto";
        options.components.planner = &planner_component();
        options.batch = 16;
        options.epochs = 2;
        options.max_steps = 6;
        options.checkpoint_every = 0;
        options.checkpoint_minutes = 0;
        options.prefetch = 0;
        options.dir = folder.path();
        options.name = "planned";
        Trainer trainer(blocks, options, world);
        const auto state = trainer.model().state();
        for (const auto& [name, value] : state) after[name] = value.clone();
        if (world.rank() == 0) {
          for (const auto& [name, value] : before) {
            const auto at = after.find(name);
            ASSERT_NE(at, after.end()) << name;
            EXPECT_TRUE(torch::equal(at->second, value)) << name;
          }
        }
        const TrainResult result = trainer.run();
        EXPECT_EQ(result.steps, 6);
        EXPECT_TRUE(std::isfinite(result.loss));
      },
      100s);
  const std::string config = read_file(folder / "planned/config.toml", 1 << 20);
  EXPECT_THAT(config, testing::HasSubstr("plan = \"manual\""));
}

// Both ranks see slower links. The predicted steps of other layouts stay far below `step`, even if
// a busy machine has measured slow messages.
internal::Departure slower_links(const internal::StepParts& expected, double step) {
  internal::Departure departure;
  departure.cause = internal::Cause::kLinks;
  departure.measured = expected;
  departure.measured.communication = 0.02;  // seconds for some kilobytes
  departure.measured.step = step;
  return departure;
}

TEST(AutoPlan, AnotherLayoutIsTriedAndTakenIfItsStepsAreFaster) {
  comm::replicate(
      2,
      [&](const Group& world) {
        std::atomic<int> pause_ms{0};
        Task task = two_layers(500us);
        const auto x = torch::linspace(-1, 1, 64 * 16).view({64, 16});
        task.train = samples(64, [&](const std::vector<std::int64_t>& indices) {
          std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms.load()));
          const auto at = torch::tensor(indices);
          return std::pair(x.index_select(0, at), at.remainder(4));
        });
        Options options;
        options.epochs = 1;
        options.mesh = "auto";
        options.components.planner = &planner_component();
        options.batch = 16;
        options.prefetch = 0;
        internal::RunPlan plan(options, config_of(options), false);
        plan.begin(task, world);
        const internal::PlannedLayout first = *plan.planned();
        // Slower than the model's prediction, faster than the trial.
        constexpr double kPresent = 0.15;
        pause_ms = 200;
        ASSERT_TRUE(plan.helps(slower_links(first.parts, kPresent), 1 << 20, 1, world));
        plan.try_next(task, world);
        EXPECT_EQ(plan.planned()->keys, first.keys);
        EXPECT_EQ(plan.planned()->parts.step, kPresent) << "what steps are expected to take now";
        pause_ms = 0;
        // Slower than what is expected since the trial.
        ASSERT_TRUE(plan.helps(slower_links(plan.planned()->parts, 10), 1 << 20, 1, world));
        plan.try_next(task, world);
        EXPECT_NE(plan.planned()->keys, first.keys);
        EXPECT_TRUE(plan.planned()->is_tried);
        EXPECT_LT(plan.planned()->seconds, 5);
        const internal::PlannedLayout second = *plan.planned();
        plan.try_next(task, world);
        EXPECT_EQ(plan.planned()->keys, second.keys) << "there is no next one";
      },
      100s);
}

}  // namespace auto_plan_test
}  // namespace weft::train
