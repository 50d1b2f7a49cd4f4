#include "weft/train/internal/key_uses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/config.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace key_uses_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<std::string> idle(const std::vector<std::string>& assignments) {
  Config config(recipe_schema());
  for (const std::string& assignment : assignments) config.set(assignment);
  return idle_keys(config);
}

const std::vector<std::string> kBuckets = {"parallel.bucket_mb=8",
                                           "parallel.overlap_forward=false"};

std::vector<std::string> buckets_with(const std::vector<std::string>& assignments) {
  std::vector<std::string> all = kBuckets;
  all.insert(all.end(), assignments.begin(), assignments.end());
  return idle(all);
}

TEST(IdleKeys, OfBucketsAreNamedWhereNoGradientsTravelInBuckets) {
  const auto both = [](const std::string& why) {
    return ElementsAre("parallel.bucket_mb (--set) has no effect: " + why,
                       "parallel.overlap_forward (--set) has no effect: " + why);
  };
  EXPECT_THAT(buckets_with({}), IsEmpty());
  EXPECT_THAT(buckets_with({"parallel.fsdp=2"}), both("parallel.fsdp is above 1"));
  EXPECT_THAT(buckets_with({"model.name=gpt", "parallel.ep=2"}), both("parallel.ep is above 1"));
  const std::string workers = "the workers of a strategy send no buckets of gradients";
  EXPECT_THAT(buckets_with({"strategy.name=diloco"}), both(workers));
  EXPECT_THAT(buckets_with({"strategy.backup=1"}), both(workers));
  EXPECT_THAT(buckets_with({"strategy.name=diloco", "parallel.cp=2"}), IsEmpty());
  EXPECT_THAT(buckets_with({"parallel.plan=auto"}), IsEmpty());
}

TEST(IdleKeys, OfCheckpointsAreNamedWithoutCheckpoints) {
  const std::vector<std::string> none = {"train.keep=5", "train.checkpoint_every=0",
                                         "train.checkpoint_minutes=0"};
  EXPECT_THAT(idle(none), ElementsAre("train.keep (--set) has no effect: none of "
                                      "train.checkpoint_every, checkpoint_steps, "
                                      "checkpoint_minutes and keep_best is set"));
  for (const char* due : {"train.checkpoint_every=1", "train.checkpoint_steps=1",
                          "train.checkpoint_minutes=1", "train.keep_best=true"}) {
    std::vector<std::string> some = none;
    some.emplace_back(due);
    EXPECT_THAT(idle(some), IsEmpty()) << due;
  }
}

TEST(IdleKeys, OfTheDecayOfVectorsAreNamedForLars) {
  const std::vector<std::string> words = {"optimizer.weight_decay=0.01",
                                          "optimizer.decay_vectors=false"};
  const auto with = [&](const char* optimizer) {
    std::vector<std::string> all = words;
    all.emplace_back(optimizer);
    return idle(all);
  };
  EXPECT_THAT(with("optimizer.name=lars"),
              ElementsAre("optimizer.decay_vectors (--set) has no effect: lars never decays biases "
                          "and normalization layers"));
  EXPECT_THAT(with("optimizer.name=lamb"), IsEmpty());
}

TEST(IdleKeys, OfCopiesAreNamedWhereNoLossOfARankIsAnswered) {
  Config config(recipe_schema());
  EXPECT_FALSE(internal::idle_copies(config, false));
  config.set("train.copy_steps=5");
  EXPECT_FALSE(internal::idle_copies(config, true));
  EXPECT_EQ(internal::idle_copies(config, false),
            "train.copy_steps (--set) has no effect: no launcher answers the loss of a rank (weft "
            "run --max-replacements or --min-ranks)");
}

TEST(IdleOptions, AreNotTheDefaults) {
  EXPECT_THAT(internal::idle_options({}), IsEmpty());
  // The period of LearningRate is 1.
  EXPECT_THAT(
      internal::idle_options({.schedule = {.shape = optim::LearningRate::Shape::kConstant}}),
      IsEmpty());
  Options adam;
  adam.plan.optimizer.rule = kernels::Adam{.lr = 0.001};
  EXPECT_THAT(internal::idle_options(adam), IsEmpty());
}

TEST(IdleOptions, AreNamedByTheirKeys) {
  Options options;
  options.mesh = "dp=0,fsdp=2";
  options.batch = 64;
  options.batch_per_rank = 8;
  options.min_improvement = 0.1;
  options.strategy.period = 4;
  options.plan.data_parallel.bucket_bytes = std::size_t{8} << 20;
  EXPECT_THAT(internal::idle_options(options),
              UnorderedElementsAre(
                  HasSubstr("strategy.period (the program) is for strategy.name = "),
                  "train.batch (the program) has no effect: train.batch_per_rank is set",
                  "train.min_improvement (the program) has no effect: neither train.keep_best nor "
                  "train.patience is set",
                  "parallel.bucket_mb (the program) has no effect: parallel.fsdp is above 1"));
}

TEST(IdleOptions, WithoutAKeyAreNamedByTheirMembers) {
  Options options;
  options.mesh = "auto";
  options.predict_plan = true;
  options.plan.batch = 64;
  options.plan.device = at::Device(at::kCUDA, 0);
  EXPECT_THAT(internal::idle_options(options),
              ElementsAre(HasSubstr("options.predict_plan has no effect: "),
                          HasSubstr("options.plan.batch has no effect: set options.batch"),
                          HasSubstr("options.plan.device has no effect: set options.device")));
}

TEST(IdleOptions, DoNotHaveTheNumberOfCheckpointsIfACallbackMayAskForThem) {
  Options options;
  options.keep = 5;
  options.checkpoint_every = 0;
  options.checkpoint_minutes = 0;
  EXPECT_THAT(internal::idle_options(options), ElementsAre(HasSubstr("train.keep (the program)")));
  options.on_step = [](const StepReport&, Control&) {};
  EXPECT_THAT(internal::idle_options(options), IsEmpty());
}

}  // namespace key_uses_test
}  // namespace weft::train
