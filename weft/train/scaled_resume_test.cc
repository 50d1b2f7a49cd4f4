// Runs whose batch follows the number of ranks, stopped and resumed from disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/observe/report/metrics_file.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace scaled_resume_test {

using testing::Each;
using testing::ElementsAre;

class ScaledResume : public testing::Test {
 protected:
  ScaledResume() {
    set_log_level(LogLevel::kError);
    options_.epochs = 1;
    options_.schedule.shape = optim::LearningRate::Shape::kConstant;
    options_.batch = 64;
    options_.on_resize = OnResize::kScale;
    options_.dir = folder_.path();
    options_.name = "run";
    options_.prefetch = 0;
    options_.log_every = 1;
    options_.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.5), {});
  }

  // Trains until `steps` steps are done.
  TrainResult train(int ranks, std::int64_t steps) {
    options_.max_steps = steps;
    largest_pass_ = 0;
    TrainResult result;
    replicate(ranks, [&](const Group& group) {
      torch::manual_seed(1);
      const torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1));
      Task task(parallel::blocks_of(net), [this](const at::Tensor& output, const at::Tensor&) {
        note_pass(output.size(0));
        return output.square().mean();
      });
      task.train = samples(torch::rand({512, 2}), torch::zeros({512, 1}));
      const TrainResult mine = Trainer(std::move(task), options_, group).run();
      if (group.rank() == 0) result = mine;
    });
    options_.resume = true;
    return result;
  }

  // Of the steps so far.
  std::vector<double> rates() const {
    const auto series = observe::read_metrics(folder_ / "run/metrics.jsonl");
    std::vector<double> all;
    for (const auto& point : series.at("lr")) all.push_back(point.value);
    return all;
  }

  void note_pass(std::int64_t samples) {
    std::int64_t largest = largest_pass_;
    while (largest < samples && !largest_pass_.compare_exchange_weak(largest, samples)) {
    }
  }

  TempDir folder_;
  Options options_;
  std::atomic<std::int64_t> largest_pass_ = 0;  // samples, in the last train()
};

TEST_F(ScaledResume, GoesOnWithTheBatchAndTheRateThatTheRanksHaveGivenIt) {
  train(4, 1);
  train(3, 2);
  train(3, 3);  // from a checkpoint with a batch of 48 and the rate for 64
  train(4, 4);
  EXPECT_THAT(rates(), ElementsAre(0.5, 0.375, 0.375, 0.5));
  // 2 x 64 and 2 x 48 samples are used. Of the 288 others, three ranks take 48 at a time.
  EXPECT_EQ(train(3, 0).steps, 4 + 6);
}

TEST_F(ScaledResume, GoesBackToTheBatchOfTheStartWithTheRanksOfTheStart) {
  options_.batch = 10;
  train(4, 1);
  train(3, 2);  // a batch of 7
  train(4, 3);
  EXPECT_THAT(rates(), ElementsAre(0.5, testing::DoubleNear(0.35, 1e-6), 0.5));
}

TEST_F(ScaledResume, KeepsAReferenceBatchOfItsOwn) {
  options_.reference_batch = 128;
  train(4, 1);
  train(2, 2);
  options_.reference_batch = 64;  // changed on purpose
  train(2, 3);
  EXPECT_THAT(rates(), ElementsAre(0.25, 0.125, 0.25));
}

TEST_F(ScaledResume, RefusesAnotherBatchThanThatItBeganWith) {
  train(4, 1);
  train(3, 2);
  for (const std::int64_t batch : {48, 128}) {
    options_.batch = batch;
    expect_refused([&] { train(3, 3); }, Errc::kInvalidArgument,
                   "cannot resume: the run began with train.batch=64, and now has train.batch=" +
                       std::to_string(batch));
  }
}

// As after a recovery from memory: with "keep_global_batch", two passes of 16 samples.
TEST_F(ScaledResume, AlsoWhereTheBatchIsGivenForARank) {
  options_.batch_per_rank = 16;
  train(4, 1);
  train(3, 2);
  EXPECT_THAT(rates(), ElementsAre(0.5, 0.375));
  options_.on_resize = OnResize::kKeepGlobalBatch;
  options_.name = "kept";
  options_.resume = false;
  train(4, 1);
  EXPECT_EQ(train(2, 0).steps, 512 / 64);
}

TEST_F(ScaledResume, TakesPassesThatAreNotLargerThanBefore) {
  options_.on_resize = OnResize::kKeepGlobalBatch;
  train(4, 1);
  EXPECT_EQ(largest_pass_.load(), 16);
  for (const std::int64_t steps : {2, 3}) {
    train(1, steps);
    EXPECT_EQ(largest_pass_.load(), 16);
  }
}

TEST_F(ScaledResume, TakesMoreRanksThanTheBatchOfTheStartHasSamples) {
  options_.batch = 4;
  train(2, 1);
  EXPECT_EQ(train(8, 2).steps, 2);
  EXPECT_THAT(rates(), ElementsAre(0.5, 2));
}

// The same ranks form two replicas of two stages each.
TEST_F(ScaledResume, KeepsTheBatchAndTheRateIfOnlyTheMeshChanges) {
  options_.mesh = "dp=4";
  train(4, 1);
  options_.mesh = "dp=2,pp=2";
  train(4, 2);
  EXPECT_THAT(rates(), ElementsAre(0.5, 0.5));
  EXPECT_EQ(train(4, 0).steps, 512 / 64);
}

TEST_F(ScaledResume, GivesEachRankASampleWhereTheBatchIsGivenForARank) {
  options_.batch_per_rank = 1;
  options_.on_resize = OnResize::kKeepGlobalBatch;
  train(2, 1);
  EXPECT_EQ(train(4, 2).steps, 2);
}

}  // namespace scaled_resume_test
}  // namespace weft::train
