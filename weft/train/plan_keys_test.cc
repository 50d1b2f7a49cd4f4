// Keys of a plan, and planned layouts as text. What a program without the planner refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/train/internal/plan_keys.h"
#include "weft/train/internal/planned_layout.h"
#include "weft/train/internal/run_plan.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace plan_keys_test {

constexpr const char* kFragment =
    "[train]\nbatch = 96\nrecompute = \"full\"\nbalance = \"speed\"\n\n"
    "[parallel]\npp = 2\ndp = 2\nmicro_batches = 8\nschedule = \"zb_h1\"\ncuts = [3]\n";

Config small_recipe() {
  Config config(recipe_schema());
  config.set("model.name=cnn");
  config.set("data.name=shapes");
  return config;
}

TEST(PlanKeys, AreSetExceptTheBatch) {
  Config config(recipe_schema());
  config.set("train.batch=90");
  internal::set_plan_keys(config, kFragment, "the plan");
  EXPECT_EQ(config.get_int("train.batch"), 90);
  EXPECT_EQ(config.get_string("train.recompute"), "full");
  EXPECT_EQ(config.get_int("parallel.pp"), 2);
  EXPECT_EQ(config.origin("parallel.pp"), "the plan");
  EXPECT_EQ(config.get_ints("parallel.cuts"), std::vector<std::int64_t>{3});
}

TEST(PlanKeys, ReplaceTheLayoutOfOptionsAndNothingElse) {
  Options options;
  options.epochs = 1;
  options.mesh = "auto";
  options.batch = 90;
  options.plan.seed = 7;
  options.plan.micro_batches = 3;
  internal::set_plan(options, kFragment);
  EXPECT_EQ(options.mesh, "pp=2,dp=2");
  EXPECT_EQ(options.batch, 90);
  EXPECT_EQ(options.plan.seed, 7u);
  EXPECT_EQ(options.plan.micro_batches, 8);
  EXPECT_EQ(options.plan.schedule, schedule::pipeline::Algorithm::kZeroBubbleH1);
  EXPECT_EQ(options.plan.recompute, parallel::Recompute::kFull);
  EXPECT_TRUE(options.balance_by_speed);
  internal::set_plan(options, "[parallel]\ndp = 4\n");
  EXPECT_EQ(options.mesh, "dp=4");
  EXPECT_EQ(options.plan.micro_batches, 0);
  EXPECT_TRUE(options.plan.cuts.empty());
}

TEST(PlanKeys, AnAutoMeshIsAKeyOfAConfiguration) {
  Options options;
  options.epochs = 1;
  options.mesh = "auto";
  const Config config = config_of(options);
  EXPECT_EQ(config.get_string("parallel.plan"), "auto");
  EXPECT_EQ(options_of(config).mesh, "auto");
}

TEST(PlanKeys, ThatContradictAPlanAreRefused) {
  const auto refused = [](const std::vector<std::string>& keys, const std::string& what) {
    Config config = small_recipe();
    config.set("parallel.plan=auto");
    for (const std::string& key : keys) config.set(key);
    expect_refused([&] { check_recipe(config); }, Errc::kBadConfig, what);
  };
  refused({"parallel.dp=2"}, "--set: parallel.dp is set, but parallel.plan = \"auto\" chooses it");
  refused({"parallel.tp=1"}, "parallel.tp is set");
  refused({"train.batch_per_rank=8"}, "train.batch_per_rank is not supported");
  refused({"strategy.name=local_sgd"}, "strategy.name is not supported");
  refused({"strategy.backup=1"}, "strategy.backup is not supported");
  refused({"train.reproducible=true"}, "train.reproducible sets the micro-batches itself");
  refused({"train.batch_schedule=noise"}, "train.batch_schedule is not supported");
  refused({"train.device=cuda"}, "train.device is not supported");
  refused({"train.verify_steps=10"}, "train.verify_steps is not supported");
  Config config = small_recipe();
  config.set("parallel.plan=predict");
  config.set("parallel.dp=2");
  check_recipe(config);
  EXPECT_THAT(refusal([&] { config.set("parallel.plan=best"); }, Errc::kBadConfig),
              testing::HasSubstr("parallel.plan"));
}

TEST(PlanKeys, ACodecOfThePlanReplacesAuto) {
  Options options;
  options.epochs = 1;
  options.mesh = "auto";
  options.plan.codec = "auto";
  internal::set_plan(options, "[parallel]\ndp = 2\ncodec = \"bf16,ef=off\"\n");
  EXPECT_EQ(options.plan.codec, "bf16,ef=off");
  options.plan.codec = "auto";
  internal::set_plan(options, "[parallel]\npp = 2\n");
  EXPECT_EQ(options.plan.codec, "none");
  options.plan.codec = "int8:64";
  internal::set_plan(options, "[parallel]\npp = 2\n");
  EXPECT_EQ(options.plan.codec, "int8:64");
}

TEST(PlannedLayout, ACodecMustBeWorthItsError) {
  const auto best = [](std::vector<std::pair<std::string, double>> tried,
                       const std::vector<std::string>& codecs) {
    std::vector<internal::PlannedLayout> layouts;
    for (const auto& [codec, seconds] : tried)
      layouts.push_back({.layout = codec + " " + std::to_string(layouts.size()),
                         .keys = codec == "by speed" ? "balance = \"speed\"" : "",
                         .codec = codec,
                         .seconds = seconds});
    return internal::best_of(layouts, codecs).layout;
  };
  const std::vector<std::string> order = {"none", "bf16", "int8", "int4"};
  EXPECT_EQ(best({{"bf16", 0.96}, {"none", 1.0}, {"none", 1.1}}, order), "none 1");
  EXPECT_EQ(best({{"bf16", 0.94}, {"none", 1.0}}, order), "bf16 0");
  EXPECT_EQ(best({{"int8", 0.86}, {"bf16", 0.94}, {"none", 1.0}}, order), "bf16 1");
  EXPECT_EQ(best({{"int8", 0.84}, {"bf16", 0.94}, {"none", 1.0}}, order), "int8 0");
  EXPECT_EQ(best({{"int4", 0.6}, {"int8", 0.64}, {"bf16", 0.8}, {"none", 1.0}}, order), "int8 1");
  EXPECT_EQ(best({{"int8", 0.99}, {"none", 1.0}}, {}), "int8 0") << "the recipe's codec";
  EXPECT_EQ(best({{"by speed", 0.96}, {"none", 1.0}}, {}), "none 1");
  EXPECT_EQ(best({{"by speed", 0.94}, {"none", 1.0}}, {}), "by speed 0");
}

TEST(PlannedLayout, IsTheSameAfterATransferAsText) {
  internal::PlannedLayout planned{.layout = "pp 2", .keys = kFragment, .codec = "bf16", .ranks = 2};
  planned.seconds = 0.25;
  planned.memory = 3e9;
  planned.is_tried = true;
  planned.parts = {0.25, 0.01, 0.2, 0.02, 0.02};
  EXPECT_EQ(internal::to_json({.layout = "dp 2", .parts = {0.5, 0.25, 0, 2, 3}}),
            R"({"codec":"none","is_tried":false,"keys":"","layout":"dp 2","memory":0.0,)"
            R"("model_step_s":0.0,"parts":[0.5,0.25,0.0,2.0,3.0],"ranks":0,"step_s":0.0,)"
            R"("traffic":0.0,"tried":0})");
  const auto again = internal::planned_layout(internal::to_json(planned));
  EXPECT_EQ(internal::to_json(again), internal::to_json(planned));
  EXPECT_EQ(again.keys, kFragment);
  EXPECT_EQ(again.codec, "bf16");
  EXPECT_EQ(again.parts.compute, 0.2);
  expect_refused([] { internal::planned_layout("{\"layout\": 3}"); }, Errc::kInternal,
                 "not a planned layout");
}

TEST(Components, APlanWithoutThePlannerIsRefusedInOneLine) {
  Options options;
  options.mesh = "auto";
  const auto plan = [&] { internal::RunPlan(options, config_of(options), false); };
  expect_refused(plan, Errc::kBadConfig,
                 "parallel.plan = \"auto\" needs the planner, which this program does not have; "
                 "build weft with -DWEFT_PLAN=ON");
  options.mesh = "dp=0";
  options.predict_plan = true;
  expect_refused(plan, Errc::kBadConfig, "parallel.plan = \"predict\" needs the planner");
  EXPECT_EQ(parameters_of(small_recipe(), {}), std::nullopt);
}

}  // namespace plan_keys_test
}  // namespace weft::train
