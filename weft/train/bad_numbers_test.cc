// Batches whose loss or gradient is not a number, and ranks that are slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/testing/folders.h"
#include "weft/comm/replicate.h"
#include "weft/observe/report/metrics_file.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/dataset.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace bad_numbers_test {

namespace nn = torch::nn;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
  return nn::functional::cross_entropy(output, target);
}

// `bad` of the samples are NaN, at even distances.
Task task_with(std::int64_t samples, std::int64_t bad, bool norm = true) {
  torch::manual_seed(1);
  nn::Sequential net(nn::Linear(2, 8));
  if (norm) net->push_back(nn::BatchNorm1d(8));
  net->push_back(nn::ReLU());
  net->push_back(nn::Linear(8, 2));
  Task task(parallel::blocks_of(net), loss);
  at::Tensor x = torch::arange(2 * samples).to(torch::kFloat).mul(0.7).sin().view({samples, 2});
  const at::Tensor y = x.sum(1).gt(0).to(torch::kLong);
  for (std::int64_t i = 0; i < bad; ++i) x[i * samples / bad] = kNan;
  task.train = train::samples(x, y);
  return task;
}

// Keeps warnings and errors from the terminal; they are in the run folder.
struct Quiet {
  Quiet() {
    set_log_level(LogLevel::kWarn);
    testing::internal::CaptureStderr();
  }
  ~Quiet() {
    testing::internal::GetCapturedStderr();
    set_log_level(LogLevel::kInfo);
  }
};

Options options_in(const TempDir& folder) {
  Options options;
  options.epochs = 3;
  options.batch = 8;
  options.dir = folder.path();
  options.name = "run";
  options.prefetch = 0;
  options.log_every = 1;
  options.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.1), {});
  return options;
}

void run(int ranks, const Options& options, const std::function<Task()>& task) {
  replicate(ranks, [&](const Group& group) { Trainer(task(), options, group).run(); });
}

std::map<std::string, at::Tensor> saved_weights(const TempDir& folder) {
  return checkpoint::load(*checkpoint::latest(folder / "run/ckpt").folder).parts.at("model");
}

TEST(BadNumbers, ABatchWithNanIsSkippedAndLeavesNoTraceInWeightsAndStatistics) {
  for (const char* mesh : {"dp=2", "fsdp=2", "pp=2"}) {
    const Quiet quiet;
    const TempDir folder;
    Options options = options_in(folder);
    options.mesh = mesh;
    options.plan.micro_batches = 2;  // batch norm needs more than one sample
    run(2, options, [] { return task_with(64, 1); });
    for (const auto& [name, tensor] : saved_weights(folder))
      EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << mesh << " " << name;
    const auto series = observe::read_metrics(folder / "run/metrics.jsonl");
    EXPECT_EQ(series.at("skipped_steps").back().value, 3) << mesh;  // one in each epoch
    EXPECT_EQ(series.at("lr").size(), 24u);
    const std::string log = read_file(folder / "run/log.jsonl", 1 << 20);
    EXPECT_THAT(log, testing::ContainsRegex(
                         " is skipped: the gradient of [0-9].[a-z]+ is NaN or infinite on rank "))
        << mesh;
  }
}

TEST(BadNumbers, ARunThatResumesGoesOnToCountTheSkippedSteps) {
  const Quiet quiet;
  const TempDir folder;
  Options options = options_in(folder);
  for (const int epochs : {2, 3}) {
    options.epochs = epochs;
    run(1, options, [] { return task_with(64, 1); });
    const auto series = observe::read_metrics(folder / "run/metrics.jsonl");
    EXPECT_EQ(series.at("skipped_steps").back().value, epochs) << "one in each epoch";
    options.resume = true;
  }
}

TEST(BadNumbers, TooManyInARowEndTheRunWithACheckpointOfTheLastGoodWeights) {
  const Quiet quiet;
  const TempDir folder;
  Options options = options_in(folder);
  options.mesh = "dp=2";
  const std::string why =
      refusal([&] { run(2, options, [] { return task_with(64, 64); }); }, Errc::kBadConfig);
  EXPECT_THAT(why, HasSubstr("the loss is NaN or infinite since step 1, first on rank 0, 3 steps "
                             "in a row: the run ends"));
  EXPECT_THAT(why, HasSubstr("which has the weights of the last good step"));
  for (const auto& [name, tensor] : saved_weights(folder))
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  EXPECT_THAT(*checkpoint::latest(folder / "run/ckpt").folder, HasSubstr("step-00000003"));
}

TEST(BadNumbers, AreNamedAtTheFirstAndTheTenthStepInARow) {
  const Quiet quiet;
  const TempDir folder;
  Options options = options_in(folder);
  options.max_not_finite = 0;
  run(1, options, [] { return task_with(64, 64); });  // 24 steps
  const std::string log = read_file(folder / "run/log.jsonl", 1 << 20);
  std::vector<std::string> named;
  for (std::size_t at = log.find(" is skipped"); at != std::string::npos;
       at = log.find(" is skipped", at + 1))
    named.push_back(log.substr(log.rfind("step ", at), at - log.rfind("step ", at)));
  EXPECT_THAT(named, testing::ElementsAre("step 1", "step 10"));
  EXPECT_THAT(log, HasSubstr("; 10 steps in a row"));
}

TEST(BadNumbers, WithoutSkippingTheRunEndsAsBefore) {
  const Quiet quiet;
  const TempDir folder;
  Options options = options_in(folder);
  options.plan.skip_not_finite = false;
  const std::string why =
      refusal([&] { run(1, options, [] { return task_with(64, 64); }); }, Errc::kBadConfig);
  EXPECT_THAT(why, HasSubstr("3 steps in a row: the run ends"));
  EXPECT_FALSE(checkpoint::latest(folder / "run/ckpt").folder.has_value());
}

// The loss of each step is 3, and NaN in the steps of this rank that `is_bad` tells. 64 samples.
Task task_of_threes(const std::function<bool(int step)>& is_bad) {
  Task task = task_with(64, 0, /*norm=*/false);
  task.test = task.train;
  task.model.loss = [is_bad, step = std::make_shared<int>()](const at::Tensor& output,
                                                             const at::Tensor&) {
    const bool trains = at::GradMode::is_enabled();
    return output.sum() * (trains && is_bad(++*step) ? kNan : 0.0F) + 3;
  };
  return task;
}

TEST(BadNumbers, ASkippedStepBeforeACheckpointLosesNoCheckpoint) {
  const Quiet quiet;
  const TempDir folder;
  Options options = options_in(folder);
  options.epochs = 2;
  options.keep_best = true;
  run(1, options, [] { return task_of_threes([](int step) { return step % 8 == 0; }); });
  EXPECT_THAT(checkpoint::names_in(folder / "run/ckpt"),
              testing::ElementsAre("step-00000008", "step-00000016"));
  EXPECT_THAT(read_file(folder / "run/best.json", 1 << 10), HasSubstr("step-00000008"));
}

TEST(BadNumbers, WhileAllStepsAreSkippedTheGoodCheckpointsStay) {
  const Quiet quiet;
  const TempDir folder;
  Options options = options_in(folder);
  options.epochs = 2;
  options.checkpoint_steps = 1;
  options.max_not_finite = 0;
  run(1, options, [] { return task_of_threes([](int step) { return step > 5; }); });
  EXPECT_THAT(checkpoint::names_in(folder / "run/ckpt"),
              testing::ElementsAre("step-00000004", "step-00000005", "step-00000016"));
}

TEST(BadNumbers, ACheckpointThatTheProgramAsksForIsSavedWhileStepsAreSkipped) {
  const Quiet quiet;
  const TempDir folder;
  Options options = options_in(folder);
  options.epochs = 2;
  options.checkpoint_every = 100;  // and at the end
  options.max_not_finite = 0;
  options.on_step = [](const StepReport& report, Control& control) {
    if (report.step == 10) control.save();
  };
  options.on_epoch_end = [](const EpochReport& report, Control& control) {
    if (report.epoch == 1) control.save();
  };
  run(1, options, [] { return task_of_threes([](int step) { return step > 5; }); });
  EXPECT_THAT(checkpoint::names_in(folder / "run/ckpt"),
              testing::ElementsAre("step-00000008", "step-00000011", "step-00000016"));
}

// One of the eight batches of an epoch. The run stops and resumes after it.
TEST(BadNumbers, TheLossOfAnEpochIsTheMeanOverTheStepsThatAreNotSkipped) {
  for (const char* name : {"sync", "downpour"}) {
    const Quiet quiet;
    const TempDir folder;
    Options options = options_in(folder);
    options.epochs = 1;
    options.strategy.name = name;
    options.max_steps = 5;
    const auto task = [] { return task_of_threes([](int step) { return step == 2; }); };
    run(2, options, task);
    options.resume = true;
    options.max_steps = 0;
    std::atomic<double> loss = 0;
    options.on_epoch_end = [&](const EpochReport& epoch, Control&) { loss = epoch.train_loss; };
    run(2, options, [] { return task_of_threes([](int) { return false; }); });
    EXPECT_DOUBLE_EQ(loss.load(), 3) << name;
    if (options.strategy.name != "downpour") continue;
    const auto metrics = observe::read_metrics(folder / "run/metrics.jsonl");
    for (const auto& point : metrics.at("loss")) {
      if (std::isnan(point.value)) continue;
      EXPECT_DOUBLE_EQ(point.value, 3);
    }
  }
}

// The loss of the second step is 9 on the last rank, whose gradient is NaN. With local_sgd, that
// rank alone skips the step.
TEST(BadNumbers, TheLossOfAnEpochLeavesOutASkippedStepWhoseLossIsFinite) {
  for (const char* name : {"sync", "local_sgd"}) {
    const Quiet quiet;
    const TempDir folder;
    Options options = options_in(folder);
    options.epochs = 1;
    options.strategy.name = name;
    std::array<std::atomic<double>, 2> losses = {};
    replicate(2, [&](const Group& group) {
      const bool is_last = group.rank() == 1;
      Task task = task_of_threes([](int) { return false; });
      task.model.loss = [is_last, step = std::make_shared<int>()](const at::Tensor& output,
                                                                  const at::Tensor&) {
        const bool is_bad = is_last && at::GradMode::is_enabled() && ++*step == 2;
        const at::Tensor zero = output.sum() * 0;  // the gradient of its root is NaN
        return is_bad ? zero.sqrt() + 9 : zero + 3;
      };
      Options mine = options;
      mine.on_epoch_end = [&](const EpochReport& epoch, Control&) {
        losses[static_cast<std::size_t>(group.rank())] = epoch.train_loss;
      };
      Trainer(std::move(task), mine, group).run();
    });
    EXPECT_DOUBLE_EQ(losses[0].load(), 3) << name;
    EXPECT_DOUBLE_EQ(losses[1].load(), 3) << name;
  }
}

// Rank 1 computes wrongly in each step. The first one is skipped, the second one ends the run.
TEST(BadNumbers, TheCheckpointAtAWrongGradientComesBeforeTheBatchOfItsStep) {
  const Quiet quiet;
  const TempDir folder;
  Options options = options_in(folder);
  options.verify_steps = 1;
  const auto train = [&] {
    replicate(2, [&](const Group& group) {
      Task task = task_with(64, 0, /*norm=*/false);
      const float factor = group.rank() == 1 ? 1.5F : 1.0F;
      task.model.loss = [factor](const at::Tensor& output, const at::Tensor& target) {
        return loss(output, target) * factor;
      };
      Trainer(std::move(task), options, group).run();
    });
  };
  EXPECT_THAT(refusal(train, Errc::kCorrupt), HasSubstr("in step 2: another rank gets other bits"));
  const auto latest = checkpoint::latest(folder / "run/ckpt");
  ASSERT_TRUE(latest.folder);
  const auto saved = checkpoint::load(*latest.folder);
  EXPECT_EQ(saved.step, 1);
  EXPECT_EQ(saved.state.at("position"), "8") << "one batch";
}

// The second rank computes its loss for 3 ms longer.
TEST(SlowRankTiming, IsNamedInTheLogAndTheMetrics) {
  for (int attempt = 0;; ++attempt) {
    const Quiet quiet;
    const TempDir folder;
    Options options = options_in(folder);
    options.mesh = "dp=2";
    options.max_steps = 40;
    options.epochs = 100;
    options.log_every = 10;
    options.on_straggler = OnStraggler::kRebalance;
    replicate(2, [&](const Group& group) {
      Task task = task_with(64, 0, false);  // a slow rank may get one sample
      if (group.rank() == 1) {
        task.model.loss = [](const at::Tensor& output, const at::Tensor& target) {
          const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
          while (std::chrono::steady_clock::now() < end) {
          }
          return loss(output, target);
        };
      }
      Trainer(std::move(task), options, group).run();
    });
    const std::string log = read_file(folder / "run/log.jsonl", 1 << 20);
    const bool named = log.find("rank 1 is slow: the others wait for it") != std::string::npos;
    if (!named && attempt < 2) continue;  // on a busy machine
    EXPECT_THAT(log, HasSubstr("rank 1 is slow: the others wait for it"));
    const auto series = observe::read_metrics(folder / "run/metrics.jsonl");
    EXPECT_EQ(series.at("awaited_rank").back().value, 1);
    EXPECT_GT(series.at("awaited_share").at(2).value, 0.3);
    EXPECT_THAT(read_file(folder / "run/ranks.json", 1 << 20), HasSubstr("\"awaited_share\":0."));
    return;
  }
}

}  // namespace bad_numbers_test
}  // namespace weft::train
