// Image models learn the same weights under every parallel plan.
#include <gmock/gmock.h>

#include "weft/base/testing/refusal.h"
#include "weft/train/testing/image_runs.h"

namespace weft::train {
namespace image_plans_test {

using internal::expect_close;
using internal::expect_same_bits;
using internal::ImageRuns;
using internal::with;
using testing::HasSubstr;

struct Division {
  const char* name;
  int world;
  std::vector<std::string> words;
};

const std::vector<Division>& divisions() {
  static const std::vector<Division> all = {
      {"dp", 2, {}},
      {"fsdp", 2, {"parallel.fsdp=2"}},
      {"zero1", 2, {"parallel.fsdp=2", "parallel.zero_stage=1", "parallel.micro_batches=2"}},
      {"pp", 2, {"parallel.pp=2", "train.recompute=full"}},
      {"pp_dp",
       4,
       {"parallel.pp=2", "parallel.schedule=gpipe", "parallel.micro_batches=2",
        "parallel.cuts=[1]"}},
  };
  return all;
}

const std::vector<std::string> kShort = {"train.max_steps=5", "train.epochs=1", "optimizer.lr=0.05",
                                         "optimizer.max_grad_norm=1"};

TEST(ImagePlans, LearnTheSameWithDataFsdpPipelineAndTensorParallelism) {
  for (const std::string model : {"mlp", "cnn", "mixer", "vit"}) {
    ImageRuns runs;
    auto words = with(kShort, {"model.name=" + model});
    if (model == "mixer" || model == "vit")
      words = with(words, {"model.patch=7", "model.layers=2", "model.width=16"});
    if (model == "vit") words = with(words, {"model.heads=2", "model.dropout=0"});
    const auto one = runs.train(1, "one", words);
    for (const Division& division : divisions()) {
      SCOPED_TRACE(model + " over " + division.name);
      const auto outcome = runs.train(division.world, division.name, with(words, division.words));
      expect_close(outcome, one, 1e-4);
      EXPECT_NEAR(outcome.result.loss, one.result.loss, 1e-4);
      EXPECT_NEAR(outcome.result.accuracy, one.result.accuracy, 0.02);
    }
    if (model != "mixer" && model != "vit") continue;
    SCOPED_TRACE(model + " over tp");
    expect_close(runs.train(2, "tp", with(words, {"parallel.tp=2"})), one, 1e-4);
    expect_close(runs.train(4, "tp_pp", with(words, {"parallel.tp=2", "parallel.pp=2"})), one,
                 1e-4);
  }
}

TEST(ImagePlans, HaveTheBitsOfOneProcessWithTrainReproducible) {
  ImageRuns runs;
  const auto words = with(kShort, {"model.name=cnn", "train.reproducible=true", "data.flip=true"});
  const auto one = runs.train(1, "one", words);
  for (const Division& division :
       {Division{"dp", 4, {}}, {"fsdp", 2, {"parallel.fsdp=2"}}, {"pp_dp", 4, {"parallel.pp=2"}}}) {
    SCOPED_TRACE(division.name);
    expect_same_bits(one, runs.train(division.world, division.name, with(words, division.words)));
  }
}

TEST(ImagePlans, ResumeFromACheckpointOfAnotherPlan) {
  ImageRuns runs;
  const auto words = with(kShort, {"model.name=cnn", "optimizer.name=adamw", "optimizer.lr=0.001"});
  const auto whole = runs.train(1, "whole", words);
  runs.train(2, "cut", with(words, {"train.max_steps=2", "parallel.pp=2"}));
  runs.train(2, "cut", with(words, {"train.max_steps=3", "parallel.fsdp=2"}));
  expect_close(runs.train(2, "cut", words), whole, 1e-3);
}

TEST(ImagePlans, TrainInFloat16WithLossScalingAndWithSharesBySpeed) {
  ImageRuns runs;
  const auto half = runs.train(
      2, "half", {"model.name=mlp", "train.precision=f16", "train.epochs=4", "optimizer.lr=0.05"});
  EXPECT_EQ(half.tensors.count("loss_scale"), 1u);
  const auto loss = [](const std::string& text) { return std::stod(text.substr(7)); };
  EXPECT_LT(loss(half.losses.back()), loss(half.losses.front()));
  const auto words = with(kShort, {"model.name=mlp", "train.log_every=1", "parallel.pp=2"});
  const auto even = runs.train(4, "even", words);
  expect_close(runs.train(4, "speed", with(words, {"train.balance=speed"})), even, 1e-3);
}

TEST(ImagePlans, AreRejectedWithTheReasonInOneLineAndLeaveNoRunFolder) {
  ImageRuns runs;
  const auto refused = [&](int world, const std::vector<std::string>& words) {
    const std::string what =
        refusal([&] { runs.train(world, "refused", words); }, Errc::kBadConfig);
    EXPECT_FALSE(std::filesystem::exists(runs.path("refused"))) << what;
    return what;
  };
  EXPECT_THAT(refused(2, {"model.name=resnet18", "parallel.tp=2"}),
              HasSubstr("parallel.tp (--set) is for model.name"));
  EXPECT_THAT(refused(4, {"model.name=mlp", "parallel.pp=4"}),
              HasSubstr("4 stages (pp=4, 1 of each rank) of 3 blocks"));
  EXPECT_THAT(refused(2, {"model.name=vit", "model.heads=1", "parallel.tp=2"}),
              HasSubstr("heads = 1 cannot be split over tp=2"));
  EXPECT_THAT(refused(2, {"parallel.fsdp=2", "parallel.codec=bf16"}),
              HasSubstr("use dp on the slow links"));
  EXPECT_THAT(refused(2, {"parallel.fsdp=2", "parallel.codec=auto"}), HasSubstr("name a codec"));
  EXPECT_THAT(refused(2, {"model.name=mlp", "model.sync_batch_norm=true"}),
              HasSubstr("model.sync_batch_norm (--set) is for"));
}

}  // namespace image_plans_test
}  // namespace weft::train
