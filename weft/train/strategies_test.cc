// Recipes whose replicas are workers with weights of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/testing/image_runs.h"
#include "weft/train/testing/text_runs.h"

namespace weft::train {
namespace strategies_test {

using internal::expect_close;
using internal::expect_same_bits;
using internal::ImageRuns;
using internal::with;
using testing::HasSubstr;

const std::vector<std::string> kShort = {"model.name=mlp", "model.hidden=[32]", "train.epochs=2",
                                         "optimizer.lr=0.05"};

// 100 samples in batches of 16: the last batch of an epoch has 4.
TEST(Strategies, LocalSgdWithPeriodOneIsDataParallelism) {
  ImageRuns runs;
  const auto sync = runs.train(4, "sync", kShort);
  const auto local =
      runs.train(4, "local", with(kShort, {"strategy.name=local_sgd", "strategy.period=1"}));
  ASSERT_EQ(sync.losses.size(), local.losses.size());
  for (const auto& [name, tensor] : sync.tensors) {
    if (name.find("momentum") != std::string::npos) continue;  // each worker's own
    EXPECT_TRUE(at::allclose(tensor, local.tensors.at(name), 1e-4, 1e-5)) << name;
  }
  EXPECT_NEAR(sync.result.loss, local.result.loss, 1e-4);
}

TEST(Strategies, EachOneTrainsAndResumesWithTheBitsOfAnUninterruptedRun) {
  for (const std::string name : {"local_sgd", "slow_momentum", "diloco", "easgd", "gossip"}) {
    SCOPED_TRACE(name);
    ImageRuns runs;
    const auto words = with(kShort, {"strategy.name=" + name, "strategy.period=3"});
    const auto whole = runs.train(3, "whole", words);
    EXPECT_LT(whole.result.loss, 2.5);                         // ten classes: 2.3 by chance
    runs.train(3, "cut", with(words, {"train.max_steps=8"}));  // between two exchanges
    const auto resumed = runs.train(3, "cut", words);
    EXPECT_EQ(resumed.result.steps, 14);
    expect_same_bits(whole, resumed);
  }
}

TEST(Strategies, AsynchronousOnesTrain) {
  for (const std::string name : {"downpour", "easgd_async"}) {
    ImageRuns runs;
    const auto words = with(kShort, {"strategy.name=" + name, "strategy.period=1"});
    EXPECT_LT(runs.train(3, name, words).result.loss, 2.31) << name;
    EXPECT_EQ(runs.train(2, name, with(words, {"train.epochs=3"})).result.steps, 21);
  }
}

TEST(Strategies, ACodecsMemoryIsResumedToo) {
  ImageRuns runs;
  const auto words = with(kShort, {"strategy.name=diloco", "strategy.period=2",
                                   "strategy.codec=topk:0.1", "strategy.fragments=2"});
  const auto whole = runs.train(2, "whole", words);
  runs.train(2, "cut", with(words, {"train.max_steps=5"}));
  expect_same_bits(whole, runs.train(2, "cut", words));
}

// The memory of a codec is of one number of workers. With another number, its lengths differ, or
// its sums have parts of workers that are gone: without gradients, they would move the weights.
TEST(Strategies, WithACodecResumeWithAnotherNumberOfWorkers) {
  const auto expect_kept = [](const std::string& codec, int before, int after) {
    SCOPED_TRACE(codec);
    ImageRuns runs;
    const auto words = with(kShort, {"strategy.name=local_sgd", "strategy.period=1",
                                     "strategy.codec=\"" + codec + "\"", "optimizer.momentum=0"});
    const auto first = runs.train(before, "run", with(words, {"train.epochs=1"}));
    const auto second = runs.train(after, "run", with(words, {"optimizer.lr=1e-9"}));
    EXPECT_EQ(second.result.steps, 14);
    for (const char* name : {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}) {
      EXPECT_TRUE(at::allclose(first.tensors.at(name), second.tensors.at(name), 1e-5, 1e-5))
          << name;
    }
  };
  expect_kept("topk:0.1", 4, 3);
  expect_kept("int8:64,delta", 3, 2);
}

// Two workers of two ranks each. Stages and shards hold the same numbers of weights.
class CodecOfWorkers : public testing::Test {
 protected:
  CodecOfWorkers() {
    set_log_level(LogLevel::kError);
    options_.batch = 16;
    options_.epochs = 1;
    options_.dir = folder_.path();
    options_.prefetch = 0;
    options_.strategy = {.name = "local_sgd", .period = 1, .codec = "int8:64,delta"};
    options_.schedule.shape = optim::LearningRate::Shape::kConstant;
    set_rate(0.1);
  }

  void set_rate(double lr) {
    options_.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(lr), {});
  }

  // The weights after so many steps of a run, which continues if there is one.
  std::map<std::string, at::Tensor> train(const std::string& run, const std::string& mesh,
                                          std::int64_t steps) {
    options_.name = run;
    options_.mesh = mesh;
    options_.max_steps = steps;
    options_.resume = std::filesystem::exists(folder_ / run);
    std::map<std::string, at::Tensor> weights;
    replicate(4, [&](const Group& group) {
      torch::manual_seed(1);
      const torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
      Task task(parallel::blocks_of(net), [](const at::Tensor& y, const at::Tensor& target) {
        return (y - target).square().mean();
      });
      task.train = samples(torch::rand({160, 4}), torch::rand({160, 4}));
      Trainer trainer(std::move(task), options_, group);
      trainer.run();
      const auto state = trainer.model().state();
      if (group.rank() == 0) weights = {state.begin(), state.end()};
    });
    return weights;
  }

  TempDir folder_;
  Options options_;
};

// Without gradients, the rounding that the memory has kept moves the weights by about 1e-4, and the
// memory of another rank by as much as the weights are large. Without memory, they stay.
TEST_F(CodecOfWorkers, HasTheMemoryOfTheSameRankOfTheSameWorkerInAnotherOrderOfTheMesh) {
  const auto before = train("run", "dp=2,fsdp=2", 3);
  set_rate(1e-9);
  const auto after = train("run", "fsdp=2,dp=2", 4);
  const at::Tensor moved = (before.at("0.weight") - after.at("0.weight")).abs().max();
  EXPECT_GT(moved.item<double>(), 1e-6);
  for (const char* name : {"0.weight", "0.bias", "1.weight", "1.bias"})
    EXPECT_TRUE(at::allclose(before.at(name), after.at(name), 0, 1e-3)) << name;
}

TEST_F(CodecOfWorkers, BeginsAnewWhereARankHoldsAnotherPartOfTheModel) {
  const auto before = train("run", "dp=2,fsdp=2", 3);
  set_rate(1e-9);
  const auto after = train("run", "dp=2,pp=2", 4);
  for (const char* name : {"0.weight", "0.bias", "1.weight", "1.bias"})
    EXPECT_TRUE(at::allclose(before.at(name), after.at(name), 1e-5, 1e-5)) << name;
}

TEST(Strategies, TheCheckpointHasTheResultAndSuitsAnyNumberOfWorkersAndSync) {
  ImageRuns runs;
  const auto words = with(kShort, {"strategy.name=easgd", "strategy.period=2", "train.epochs=1"});
  runs.train(3, "run", words);
  const auto latest = checkpoint::latest(runs.path("run") + "/ckpt");
  ASSERT_TRUE(latest.folder);
  const checkpoint::Reader saved(*latest.folder);
  const at::Tensor result = saved.read("model", "fc1.weight"),
                   center = saved.read("strategy", "strategy.easgd.center.fc1.weight"),
                   worker = saved.read("workers", "workers.2.fc1.weight");
  EXPECT_TRUE(at::equal(result, center));
  EXPECT_FALSE(at::equal(result, worker));
  const auto more = with(words, {"train.epochs=2"});
  EXPECT_EQ(runs.train(4, "run", more).result.steps, 14);
  EXPECT_EQ(runs.train(1, "run", with(kShort, {"train.epochs=3"})).result.steps, 21);
}

// The weights of two workers of two ranks each: fsdp divides them within a worker.
TEST(Strategies, WorkBetweenWorkersOfSeveralRanks) {
  ImageRuns runs;
  const auto words = with(kShort, {"strategy.name=diloco", "strategy.period=3"});
  const auto plain = runs.train(2, "plain", words);
  for (const std::string inner : {"parallel.fsdp=2", "parallel.pp=2"}) {
    SCOPED_TRACE(inner);
    const auto name = inner.substr(9, 2);
    const auto more = with(words, {inner, "parallel.dp=2"});
    const auto whole = runs.train(4, name, more);
    for (const auto& [tensor, values] : plain.tensors)
      EXPECT_TRUE(at::allclose(values, whole.tensors.at(tensor), 1e-3, 1e-4)) << tensor;
    runs.train(4, name + "-cut", with(more, {"train.max_steps=8"}));
    expect_same_bits(whole, runs.train(4, name + "-cut", more));
  }
}

TEST(Strategies, AWorkerWithoutSamplesOfTheLastBatchDoesNotHold) {
  ImageRuns runs;
  // 100 samples in batches of 33: the last batch has one sample, and 3 workers.
  const auto one = runs.train(
      3, "run", with(kShort, {"strategy.name=local_sgd", "strategy.period=2", "train.batch=33"}));
  EXPECT_EQ(one.result.steps, 8);
  EXPECT_TRUE(std::isfinite(one.result.loss));
}

// Two workers of two ranks each, which share weights. The step after the change is skipped, so no
// update notices it.
TEST(Strategies, AValueOfASharedWeightThatIsWrittenBeforeAnExchangeIsAnError) {
  set_log_level(LogLevel::kError);
  const TempDir folder;
  Options options;
  options.batch = 16;
  options.epochs = 1;
  options.dir = folder.path();
  options.name = "run";
  options.prefetch = 0;
  options.mesh = "dp=2,fsdp=2";
  options.strategy = {.name = "local_sgd", .period = 1};
  options.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.1), {});
  std::string text = "no error";
  try {
    replicate(4, [&](const Group& group) {
      torch::manual_seed(1);
      const torch::nn::Sequential net(torch::nn::Linear(4, 2048), torch::nn::Linear(2048, 4));
      const auto losses = std::make_shared<int>(0);
      Task task(parallel::blocks_of(net), [losses](const at::Tensor& y, const at::Tensor& target) {
        const at::Tensor loss = (y - target).square().mean();
        return ++*losses == 2 ? loss * std::numeric_limits<float>::quiet_NaN() : loss;
      });
      task.train = samples(torch::rand({160, 4}), torch::rand({160, 4}));
      Options own = options;
      own.on_step = [&](const StepReport& report, Control&) {
        if (report.step == 1 && group.rank() % 2 == 0) net->parameters()[0].data()[100][1] += 1;
      };
      Trainer(std::move(task), own, group).run();
    });
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_THAT(text, HasSubstr("was changed in place"));
}

TEST(Strategies, ThatDoNotFitAreRefusedInOneLine) {
  ImageRuns runs;
  const auto refused = [&](const std::vector<std::string>& words, const std::string& why) {
    expect_refused([&] { runs.train(2, "no", with(kShort, words)); }, Errc::kBadConfig, why);
  };
  refused({"strategy.name=easgd", "train.reproducible=true"},
          "strategy.name = \"easgd\": train.reproducible");
  refused({"strategy.name=gossip", "parallel.codec=bf16"}, "set strategy.codec");
  refused({"strategy.name=diloco", "train.verify_steps=10"}, "train.verify_steps");
  refused({"strategy.name=downpour", "train.on_straggler=rebalance"},
          "leave train.on_straggler at \"warn\"");
  runs.tcp = ImageRuns::Sums::kAsTheyCome;
  refused({"strategy.name=ad_psgd"}, "the workers are not on one host");
  runs.tcp.reset();
  refused({"strategy.name=diloco", "strategy.fragments=200"}, "strategy.fragments = 200");
}

}  // namespace strategies_test
}  // namespace weft::train
