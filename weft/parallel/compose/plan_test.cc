#include "weft/parallel/compose/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft::parallel {
namespace plan_test {

using schedule::pipeline::Algorithm;
using testing::HasSubstr;

std::string refusal(const Plan& plan, const ModelShape& model, int world,
                    std::vector<plan::Axis> axes) {
  try {
    check_plan(plan, model, plan::MeshLayout(world, std::move(axes)));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig);
    EXPECT_EQ(error.message().find('\n'), std::string::npos);
    return error.message();
  }
  return "accepted";
}

const ModelShape kModel{.blocks = 6, .splits = {{"heads", 12}, {"hidden", 3072}}};

TEST(PlanCheck, AcceptsPlansThatWork) {
  EXPECT_EQ(refusal({}, kModel, 1, {}), "accepted");
  EXPECT_EQ(refusal({.micro_batches = 4, .batch = 8}, kModel, 8, {{"pp", 2}, {"dp", 2}, {"tp", 2}}),
            "accepted");
  EXPECT_EQ(refusal({.schedule = Algorithm::kInterleaved}, kModel, 3, {{"pp", 3}}), "accepted");
}

TEST(PlanCheck, RejectsWhatADeviceDoesNotSupport) {
  const at::Device device(at::kCUDA, 0);
  EXPECT_EQ(refusal({.device = device}, kModel, 2, {{"dp", 2}}), "accepted");
  EXPECT_EQ(refusal({.device = device}, kModel, 4, {{"dp", 2}, {"fsdp", 2}}),
            "plan: a device (cuda:0) is supported with dp alone, not with fsdp; use dp, or the "
            "CPU");
  EXPECT_THAT(refusal({.virtual_stages = 2, .device = device}, kModel, 2, {{"dp", 2}}),
              HasSubstr("is supported with one stage on a rank, not with 2"));
  EXPECT_THAT(
      refusal({.schedule = Algorithm::kInterleaved, .device = device}, kModel, 2, {{"dp", 2}}),
      HasSubstr("is supported with one stage on a rank, not with 2"));
  EXPECT_THAT(refusal({.codec = "int8:64", .device = device}, kModel, 2, {{"dp", 2}}),
              HasSubstr("does not support codec"));
  EXPECT_THAT(
      refusal({.optimizer = {.rule = optim::Lamb{}}, .device = device}, kModel, 2, {{"dp", 2}}),
      HasSubstr("does not support the optimizer lamb"));
}

TEST(PlanCheck, NamesTheNearestPlanIfHeadsDoNotDivide) {
  EXPECT_EQ(refusal({}, kModel, 8, {{"tp", 8}}),
            "plan: heads = 12 cannot be split over tp=8; nearest that works: dp=2,tp=4");
  EXPECT_EQ(refusal({}, {.blocks = 2, .splits = {{"heads", 9}}}, 4, {{"dp", 2}, {"tp", 2}}),
            "plan: heads = 9 cannot be split over tp=2; nearest that works: dp=4,tp=1");
}

TEST(PlanCheck, NamesTheNearestPlanIfThereAreMoreStagesThanBlocks) {
  EXPECT_EQ(refusal({}, kModel, 8, {{"pp", 8}}),
            "plan: 8 stages (pp=8, 1 of each rank) of 6 blocks; every stage needs at least one; "
            "nearest that works: dp=2,pp=4");
  EXPECT_THAT(refusal({.schedule = Algorithm::kZeroBubbleV}, kModel, 4, {{"pp", 4}}),
              HasSubstr("8 stages (pp=4, 2 of each rank)"));
  // Every plan of this many ranks needs more samples or more blocks than there are.
  EXPECT_THAT(refusal({.batch = 1}, {.blocks = 1, .splits = {{"heads", 1}}}, 2, {{"pp", 2}}),
              HasSubstr("no plan of 2 ranks works; use fewer"));
}

TEST(PlanCheck, NamesTheNearestPlanIfTheBatchIsTooSmall) {
  EXPECT_EQ(refusal({.micro_batches = 4, .batch = 6}, kModel, 2, {{"dp", 2}}),
            "plan: a batch of 6 samples cannot be divided into 4 micro-batches on each of 2 "
            "replicas; nearest "
            "that works: dp=2,micro_batches=3");
  EXPECT_THAT(refusal({.batch = 3}, kModel, 4, {{"dp", 2}, {"fsdp", 2}}),
              HasSubstr("nearest that works: dp=2,fsdp=1,"));
}

TEST(PlanCheck, RejectsNumbersOutOfRange) {
  EXPECT_THAT(refusal({.micro_batches = 0}, kModel, 1, {}), HasSubstr("micro_batches"));
  EXPECT_THAT(refusal({.zero_stage = 4}, kModel, 1, {}),
              HasSubstr("zero_stage must be 1, 2 or 3, not 4"));
  EXPECT_THAT(refusal({.schedule = Algorithm::kForwardOnly}, kModel, 1, {}), HasSubstr("use 1f1b"));
}

TEST(PlanCheck, AcceptsCpAndEpIfTheModelSupportsThem) {
  const ModelShape gpt{.blocks = 6, .splits = {{"heads", 12}}, .heads = 12},
      mixture{.blocks = 6, .splits = {{"heads", 12}}, .heads = 12, .experts = 4};
  EXPECT_EQ(refusal({}, gpt, 12, {{"cp", 3}, {"tp", 2}, {"dp", 2}}), "accepted");
  EXPECT_EQ(refusal({}, mixture, 16, {{"ep", 4}, {"tp", 2}, {"dp", 2}}), "accepted");
  EXPECT_EQ(refusal({}, kModel, 2, {{"cp", 2}}),
            "plan: cp=2 divides sequences, which this model's blocks do not support; nearest "
            "that works: dp=2,cp=1");
  EXPECT_EQ(refusal({}, gpt, 2, {{"ep", 2}}),
            "plan: ep=2 divides experts, but this model has none; nearest that works: dp=2,ep=1");
  EXPECT_EQ(refusal({}, mixture, 16, {{"cp", 2}, {"ep", 4}, {"tp", 2}}), "accepted");
  EXPECT_EQ(refusal({}, mixture, 8, {{"ep", 8}}),
            "plan: experts = 4 cannot be divided over ep=8; nearest that works: dp=2,ep=4");
  EXPECT_EQ(refusal({.micro_batches = 2, .batch = 6}, mixture, 4, {{"ep", 4}}),
            "plan: a batch of 6 samples cannot be divided into 2 micro-batches on each of 4 "
            "replicas; nearest "
            "that works: ep=4,micro_batches=1");
}

TEST(PlanCheck, NamesTheNearestPlanIfHeadsDoNotDivideOverCp) {
  const Plan heads{.context = ContextMethod::kHeads};
  const ModelShape gpt{.blocks = 6, .splits = {{"heads", 12}}, .heads = 12},
      grouped{.blocks = 6, .splits = {{"heads", 12}}, .heads = 12, .kv_heads = 6};
  EXPECT_EQ(refusal({}, gpt, 8, {{"cp", 8}}), "accepted");  // by ring
  EXPECT_EQ(refusal(heads, gpt, 4, {{"cp", 2}, {"tp", 2}}), "accepted");
  EXPECT_EQ(refusal(heads, gpt, 8, {{"cp", 4}, {"tp", 2}}),
            "plan: 6 heads of a rank cannot be divided over cp=4 by heads; a ring can; nearest "
            "that works: dp=2,tp=2,cp=2");
  EXPECT_EQ(refusal(heads, grouped, 4, {{"cp", 4}}),
            "plan: 6 heads of keys and values of a rank cannot be divided over cp=4 by heads; a "
            "ring can; nearest that works: dp=2,cp=2");
}

TEST(PlanCheck, RejectsCutsThatDoNotRiseThroughTheBlocks) {
  const auto cut = [](std::vector<int> cuts) {
    return refusal({.cuts = std::move(cuts)}, {.blocks = 6}, 3, {{"pp", 3}});
  };
  EXPECT_EQ(cut({2, 4}), "accepted");
  EXPECT_THAT(cut({3}), HasSubstr("3 stages need 2 cuts, not 1"));
  for (const auto& cuts : {std::vector{0, 3}, {3, 3}, {4, 2}, {2, 6}})
    EXPECT_THAT(cut(cuts), HasSubstr("cuts must rise from 1 to 5"));
}

}  // namespace plan_test
}  // namespace weft::parallel
