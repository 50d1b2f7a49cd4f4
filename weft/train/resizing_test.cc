#include "weft/train/internal/resizing.h"

#include <gtest/gtest.h>

namespace weft::train::internal {
namespace {

TEST(Resizing, KeepsTheGlobalBatchAndTakesMorePassesOfTheSameSize) {
  const BatchDivision before{.global = 64, .replicas = 4, .pass = 16, .reference = 64};
  const Options half = resized(Options{}, before, 2, 2);
  EXPECT_EQ(half.batch, 64);
  EXPECT_EQ(half.plan.micro_batches, 2);
  EXPECT_EQ(resized(Options{}, before, 3, 3).plan.micro_batches, 2);  // 22 samples in passes of 11
  EXPECT_EQ(resized(Options{}, before, 8, 8).plan.micro_batches, 0);  // one pass suffices
}

TEST(Resizing, ScalesTheBatchWithTheReplicasAndTheRateWithTheBatch) {
  Options options;
  options.on_resize = OnResize::kScale;
  const BatchDivision before{.global = 64, .replicas = 4, .pass = 16, .reference = 64};
  const Options three = resized(options, before, 3, 3);
  EXPECT_EQ(three.batch, 48);
  EXPECT_EQ(three.reference_batch, 64);
  EXPECT_EQ(three.plan.micro_batches, 0);
  EXPECT_DOUBLE_EQ(plan_batches(three, 3, 480).base_rate,
                   plan_batches(options, 4, 480).base_rate * 48 / 64);
}

// The division of a batch after a resize, as a checkpoint has it.
BatchDivision after(const Options& options, const BatchDivision& before, int replicas) {
  return {.global = resized(options, before, replicas, replicas).batch,
          .replicas = replicas,
          .reference = before.reference,
          .first_global = before.first_global,
          .first_replicas = before.first_replicas};
}

TEST(Resizing, ScalesFromTheBatchOfTheStartHoweverOftenTheReplicasChange) {
  Options options;
  options.on_resize = OnResize::kScale;
  const BatchDivision start{
      .global = 10, .replicas = 4, .reference = 10, .first_global = 10, .first_replicas = 4};
  const BatchDivision three = after(options, start, 3), seven = after(options, three, 7);
  EXPECT_EQ(three.global, 7);
  EXPECT_EQ(seven.global, 17);
  EXPECT_EQ(after(options, three, 4).global, 10);
  EXPECT_EQ(after(options, seven, 4).global, 10);
}

TEST(Resizing, ScalesFromTheBatchBeforeIfACheckpointOfAnOlderVersionHasNoOther) {
  Options options;
  options.on_resize = OnResize::kScale;
  EXPECT_EQ(resized(options, {.global = 10, .replicas = 4, .reference = 10}, 2, 2).batch, 5);
}

TEST(Resizing, ScalesWithTheRanksWhateverNumberOfReplicasTheyForm) {
  Options options;
  options.on_resize = OnResize::kScale;
  const BatchDivision start{.global = 64,
                            .replicas = 4,
                            .reference = 64,
                            .first_global = 64,
                            .first_replicas = 4,
                            .first_ranks = 4};
  EXPECT_EQ(resized(options, start, 2, 4).batch, 64);
  EXPECT_EQ(resized(options, start, 1, 2).batch, 32);
}

TEST(Resizing, GivesEachReplicaASample) {
  const BatchDivision before{.global = 2, .replicas = 2, .pass = 1, .reference = 2};
  EXPECT_EQ(resized(Options{}, before, 4, 4).batch, 4);
}

TEST(Resizing, GivesEachReplicaASampleInEachPass) {
  const BatchDivision before{.global = 7, .replicas = 7, .pass = 1, .reference = 7};
  EXPECT_EQ(resized(Options{}, before, 3, 3).plan.micro_batches, 2);  // of 3, 2 and 2 samples
}

// Of 10 samples, eight micro-batches have at most 2 each, and so would five.
TEST(Resizing, LeavesTheMicroBatchesOfAPipelineIfTheyAreEnough) {
  Options options;
  options.mesh = "dp=0,pp=2";
  const BatchDivision before{.global = 20, .replicas = 2, .pass = 2, .reference = 20};
  EXPECT_EQ(resized(options, before, 2, 4).plan.micro_batches, 0);
  EXPECT_EQ(resized(options, before, 1, 2).plan.micro_batches, 10);
}

TEST(Resizing, LeavesMicroShardsAlone) {
  Options options;
  options.plan.micro_shards = 8;
  const BatchDivision before{.global = 64, .replicas = 4, .pass = 8, .reference = 64};
  EXPECT_EQ(resized(options, before, 1, 1).plan.micro_batches, 0);
}

}  // namespace
}  // namespace weft::train::internal
