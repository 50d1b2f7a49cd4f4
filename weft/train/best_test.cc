// Early stopping, the best checkpoint, and callbacks.
#include "weft/train/internal/best.h"

#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/testing/folders.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/train/internal/learner.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace best_test {

using internal::Best;
using testing::ElementsAre;
using testing::HasSubstr;

Evaluation evaluation(double loss, double accuracy = 0) {
  return {.samples = 1, .loss = loss, .metrics = {{"accuracy", accuracy}}};
}

TEST(Best, IsTheSmallestLossOrTheLargestMetric) {
  Best by_loss({.patience = 2});
  EXPECT_TRUE(by_loss.add(evaluation(1), 10));
  EXPECT_FALSE(by_loss.add(evaluation(1), 20));
  EXPECT_TRUE(by_loss.add(evaluation(0.5), 30));
  EXPECT_EQ(by_loss.mark().step, 30);
  Best by_accuracy({.patience = 2, .best_metric = "accuracy"});
  EXPECT_TRUE(by_accuracy.add(evaluation(1, 0.5), 10));
  EXPECT_FALSE(by_accuracy.add(evaluation(0, 0.4), 20));
  Best smallest({.patience = 2, .best_metric = "accuracy", .best_is = Better::kMin});
  EXPECT_TRUE(smallest.add(evaluation(1, 0.5), 10));
  EXPECT_TRUE(smallest.add(evaluation(1, 0.4), 20));
}

TEST(Best, KnowsByTheNameOfAMetricThatSmallerValuesAreBetter) {
  for (const char* name : {"loss", "top5_error", "Val_MSE", "test/mae", "ppl", "bits per byte"})
    EXPECT_EQ(Best({.best_metric = name}).state().is, "min") << name;
  for (const char* name : {"accuracy", "score", "certainty", "f1", "maestro"})
    EXPECT_EQ(Best({.best_metric = name}).state().is, "max") << name;
}

TEST(Best, IsOverAfterPatienceEvaluationsWithoutAnImprovement) {
  Best best({.patience = 2, .min_improvement = 0.1});
  best.add(evaluation(1), 1);
  EXPECT_FALSE(best.add(evaluation(0.95), 2));  // too little
  EXPECT_FALSE(best.is_over());
  EXPECT_TRUE(best.add(evaluation(0.8), 3));
  best.add(evaluation(0.8), 4);
  EXPECT_FALSE(best.add(evaluation(std::numeric_limits<double>::quiet_NaN()), 5));
  EXPECT_TRUE(best.is_over());
  Best resumed({.patience = 3, .min_improvement = 0.1});
  resumed.restore(best.state());
  EXPECT_FALSE(resumed.is_over());
  resumed.add(evaluation(0.75), 6);
  EXPECT_TRUE(resumed.is_over());
}

TEST(Best, NeedsEvaluationsAndAKnownMetric) {
  const auto refused = [](const Options& options, bool has_test_data, const std::string& what) {
    expect_refused(
        [&] {
          Best::check(options, {"loss", "accuracy"}, has_test_data);
        },
        Errc::kBadConfig, what);
  };
  refused({.keep_best = true}, false, "train.keep_best compares evaluations, but the task has no");
  refused({.eval_every = 0, .patience = 1}, true, "set train.eval_every or train.eval_steps");
  refused({.patience = 1, .best_metric = "f1"}, true, "it has loss, accuracy");
  Best::check({.patience = 1, .best_metric = "accuracy"}, {"loss", "accuracy"}, true);
}

// A model whose only weight is the number of the step; the metric is a function of it.
struct CounterImpl : torch::nn::Module {
  CounterImpl() { weight = register_parameter("weight", torch::zeros({1})); }
  torch::Tensor forward(const torch::Tensor& x) { return x * 0 - weight; }
  torch::Tensor weight;
};
TORCH_MODULE(Counter);

class BestRun : public testing::Test {
 protected:
  BestRun() { set_log_level(LogLevel::kError); }

  // 2 steps in an epoch. `score` by step.
  TrainResult train(Options options, const std::function<double(int)>& score, int world = 2) {
    options.batch = 4;
    options.dir = folder_.path();
    options.name = "run";
    options.prefetch = 0;
    options.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(1), {});
    options.schedule.shape = optim::LearningRate::Shape::kConstant;
    TrainResult result;
    replicate(world, [&](const Group& group) {
      Task task(parallel::blocks_of(Counter()),
                [](const torch::Tensor& y, const torch::Tensor&) { return y.mean(); });
      task.train = task.test = samples(torch::zeros({8, 1}), torch::zeros({8, 1}));
      task.metrics.push_back({"score", [&](const torch::Tensor& y, const torch::Tensor&) {
                                const auto step = std::lround(-y[0].item<double>());
                                return torch::tensor(score(static_cast<int>(step)));
                              }});
      const TrainResult mine = Trainer(task, options, group).run();
      if (group.rank() == 0) result = mine;
    });
    return result;
  }

  std::set<std::string> checkpoints() const { return checkpoint::names_in(folder_ / "run/ckpt"); }

  TempDir folder_;
};

TEST_F(BestRun, EndsOnAllRanksWhenEvaluationsNoLongerImprove) {
  Options options;
  options.epochs = 50;
  options.patience = 3;
  options.best_metric = "score";
  const auto result = train(options, [](int step) { return -std::abs(step - 6); });
  EXPECT_TRUE(result.ended_early);
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.epochs, 3 + 3);
  EXPECT_EQ(result.best_step, 6);
  EXPECT_EQ(result.best, 0);
  // It has ended; more patience goes on.
  options.resume = true;
  options.epochs = 100;
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  EXPECT_EQ(train(options, [](int) { return -9; }).steps, 12);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("nothing is left to train: raise train.patience to go on; no better score"));
  set_log_level(LogLevel::kError);
  options.patience = 5;
  EXPECT_EQ(train(options, [](int) { return -9; }).epochs, 3 + 5);
}

// Two steps in an epoch, the last of which reduces the losses.
TEST_F(BestRun, ARequestToStopAtTheLastStepCutsNothing) {
  Options options;
  options.should_stop = [] { return true; };
  options.epochs = 1;
  const auto whole = train(options, [](int step) { return step; });
  EXPECT_FALSE(whole.stopped);
  EXPECT_EQ(whole.steps, 2);
  options.epochs = 9;
  options.max_steps = 3;
  options.log_every = 1;
  options.resume = true;
  const auto few = train(options, [](int step) { return step; });
  EXPECT_FALSE(few.stopped);
  EXPECT_EQ(few.steps, 3);
  EXPECT_EQ(few.metrics.at(0).second, 3) << "is evaluated";
  options.max_steps = 0;
  EXPECT_TRUE(train(options, [](int step) { return step; }).stopped);
}

// The two steps of an epoch are those between two evaluations.
TEST_F(BestRun, EvaluatesByStepsAlsoWhereTheyEndWithAnEpoch) {
  Options options;
  options.epochs = 20;
  options.eval_every = 0;
  options.eval_steps = 2;
  options.patience = 3;
  options.best_metric = "score";
  const auto result = train(options, [](int step) { return -std::abs(step - 6); });
  EXPECT_TRUE(result.ended_early);
  EXPECT_EQ(result.epochs, 3 + 3);
  EXPECT_EQ(result.best_step, 6);
}

// A run that is asked to stop has no time for it.
TEST_F(BestRun, EvaluatesTheStepAtWhichItWasStoppedWhenItResumes) {
  Options options;
  options.epochs = 6;
  options.eval_every = 0;
  options.eval_steps = 3;
  options.log_every = 1;
  options.keep_best = true;
  options.best_metric = "score";
  int looks = 0;
  options.should_stop = [&] { return ++looks == 3; };
  std::vector<int> evaluated;
  const auto score = [&](int step) {
    if (evaluated.empty() || evaluated.back() != step) evaluated.push_back(step);  // in two parts
    return step == 3 ? 1.0 : 0.0;
  };
  EXPECT_EQ(train(options, score, 1).steps, 3);
  EXPECT_THAT(evaluated, ElementsAre());
  options.resume = true;
  options.should_stop = nullptr;
  options.max_steps = 4;
  EXPECT_EQ(train(options, score, 1).best_step, 3);
  EXPECT_EQ(internal::best_checkpoint(folder_ / "run"), folder_ / "run/ckpt/step-00000003");
  EXPECT_THAT(evaluated, ElementsAre(3, 4));
  options.max_steps = 0;
  EXPECT_EQ(train(options, score, 1).best_step, 3);
  EXPECT_THAT(evaluated, ElementsAre(3, 4, 6, 9, 12)) << "step 4 is no multiple of three";
}

TEST_F(BestRun, NamesNoBestCheckpointWithPatienceAlone) {
  Options options;
  options.epochs = 4;
  options.patience = 9;
  options.checkpoint_every = 2;
  options.best_metric = "score";
  for (const int best : {2, 4}) {
    EXPECT_EQ(train(options, [&](int step) { return step == best ? 1.0 : 0.0; }).best_step, best);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run/best.json")) << best;
    std::filesystem::remove_all(folder_ / "run");
  }
}

TEST_F(BestRun, KeepsTheBestCheckpointBesideTheNewest) {
  Options options;
  options.epochs = 6;
  options.keep = 2;
  options.keep_best = true;
  options.best_metric = "score";
  const auto score = [](int step) { return step == 4 ? 2.0 : 0.1 * step; };
  const auto result = train(options, score);
  EXPECT_EQ(result.best_step, 4);
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000004", "step-00000010", "step-00000012"));
  EXPECT_EQ(internal::best_checkpoint(folder_ / "run"), folder_ / "run/ckpt/step-00000004");
  // Also after a resume, without other checkpoints than this one asks for.
  options.resume = true;
  options.epochs = 12;
  EXPECT_EQ(train(options, score).best_step, 24);
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000022", "step-00000024"));
  expect_refused([&] { internal::best_checkpoint(folder_.path()); }, Errc::kInvalidArgument,
                 "has no best checkpoint");
}

// The score of no step is larger than the loss of step 8.
TEST_F(BestRun, ComparesAnewIfARunResumesWithAnotherMetric) {
  Options options;
  options.epochs = 4;
  options.eval_every = 4;
  options.keep = 2;
  options.keep_best = true;
  options.checkpoint_async = false;
  const auto score = [](int step) { return 0.01 * step - 100; };
  EXPECT_EQ(train(options, score).best_step, 8);
  options.resume = true;
  options.epochs = 8;
  options.best_metric = "score";
  std::atomic<int> kept{0};  // The best checkpoint stays until there is a better one.
  options.on_epoch_end = [&](const EpochReport& report, Control&) {
    if (report.step == 14) kept += std::filesystem::exists(folder_ / "run/ckpt/step-00000008");
  };
  EXPECT_EQ(train(options, score).best_step, 16);
  EXPECT_EQ(kept, 2);
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000008", "step-00000014", "step-00000016"));
  EXPECT_THAT(read_file(folder_ / "run/best.json", 1 << 16), HasSubstr("\"metric\":\"score\""));
  options.on_epoch_end = nullptr;
  options.epochs = 12;
  options.eval_every = 1;
  options.patience = 2;
  options.best_is = Better::kMin;  // Larger scores are worse than the one before.
  const auto result = train(options, score);
  EXPECT_EQ(result.best_step, 18);
  EXPECT_EQ(result.steps, 22);
}

TEST_F(BestRun, SavesTheBestAlsoWithinAnEpochAndWithoutOtherCheckpoints) {
  Options options;
  options.epochs = 3;
  options.eval_steps = 1;
  options.checkpoint_every = 0;
  options.checkpoint_minutes = 0;
  options.keep_best = true;
  options.best_metric = "score";
  EXPECT_EQ(train(options, [](int step) { return step == 3 ? 1.0 : 0.0; }).best_step, 3);
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000001", "step-00000003", "step-00000006"));
}

// The only evaluation comes after the checkpoint of the last step.
TEST_F(BestRun, IsSavedAlsoWhereACallbackEndsTraining) {
  Options options;
  options.epochs = 50;
  options.eval_every = 0;
  options.keep_best = true;
  options.best_metric = "score";
  options.on_epoch_end = [](const EpochReport& report, Control& control) {
    if (report.epoch == 2) control.stop();
  };
  const auto result = train(options, [](int step) { return step; });
  EXPECT_EQ(result.steps, 4);
  EXPECT_EQ(result.best_step, 4);
  EXPECT_EQ(internal::best_checkpoint(folder_ / "run"), folder_ / "run/ckpt/step-00000004");
}

TEST_F(BestRun, CallsTheProgramAfterStepsAndEpochs) {
  std::vector<std::int64_t> steps, epochs;
  std::vector<double> scores;
  int losses = 0;
  Options options;
  options.epochs = 3;
  options.log_every = 2;
  options.on_step = [&](const StepReport& report, Control& control) {
    steps.push_back(report.step);
    losses += report.loss.has_value() ? 1 : 0;
    control.log("twice", 2.0 * static_cast<double>(report.step));
    expect_refused([&] { control.log("loss", 1); }, Errc::kInvalidArgument, "weft's own metrics");
  };
  options.on_epoch_end = [&](const EpochReport& report, Control& control) {
    epochs.push_back(report.epoch);
    scores.push_back(report.metrics.at(0).second);
    EXPECT_EQ(report.test_loss.value(), static_cast<double>(-report.step));
    control.log("epochs", static_cast<double>(report.epoch));
  };
  train(
      options, [](int step) { return step; }, 1);
  EXPECT_THAT(steps, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(losses, 3);
  EXPECT_THAT(epochs, ElementsAre(1, 2, 3));
  EXPECT_THAT(scores, ElementsAre(2, 4, 6));
  const std::string metrics = read_file(folder_ / "run/metrics.jsonl", 1 << 20);
  EXPECT_THAT(metrics, HasSubstr("{\"step\":3,\"epoch\":1,\"twice\":6}"));
  EXPECT_THAT(metrics, HasSubstr("{\"step\":4,\"epoch\":2,\"epochs\":2}"));
}

// Also where only one rank has the callback.
TEST_F(BestRun, EndsAndSavesWhenTheCallbackOfOneRankAsks) {
  Options options;
  options.epochs = 50;
  options.checkpoint_every = 0;
  std::atomic<int> calls{0};
  options.on_epoch_end = [&](const EpochReport& report, Control& control) {
    if (calls++ % 2 > 0) return;  // one of the two ranks
    if (report.epoch == 1) control.save();
    if (report.epoch == 3) control.stop();
  };
  auto result = train(options, [](int) { return 0; });
  EXPECT_EQ(result.steps, 6);
  EXPECT_TRUE(result.ended_early);
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000002", "step-00000006"));
  options.on_epoch_end = nullptr;
  options.on_step = [](const StepReport& report, Control& control) {
    if (report.step == 9) control.stop();
  };
  options.resume = true;
  options.log_every = 3;
  EXPECT_EQ(train(options, [](int) { return 0; }).steps, 10);  // the end of the epoch reduces too
}

TEST_F(BestRun, SavesWhatIsAskedForWithoutOtherCheckpoints) {
  Options options;
  options.epochs = 4;
  options.checkpoint_every = 0;
  options.checkpoint_minutes = 0;
  options.log_every = 1;
  options.on_step = [](const StepReport& report, Control& control) {
    if (report.step == 3) control.save();
  };
  options.on_epoch_end = [](const EpochReport& report, Control& control) {
    if (report.epoch == 3) control.save();
  };
  EXPECT_EQ(train(options, [](int) { return 0; }).steps, 8);  // the end asks for none
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000004", "step-00000006"));
  options.resume = true;
  options.on_epoch_end = nullptr;
  options.on_step = [](const StepReport& report, Control& control) {
    if (report.step == 8) control.save();  // no rank reduces its losses after this
  };
  train(options, [](int) { return 0; });
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000004", "step-00000006", "step-00000008"));
  options.epochs = 50;
  options.on_step = [](const StepReport& report, Control& control) {
    if (report.step == 10) control.stop();
  };
  EXPECT_TRUE(train(options, [](int) { return 0; }).ended_early);
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000006", "step-00000008", "step-00000011"));
  options.on_step = nullptr;
  options.should_stop = [] { return true; };
  EXPECT_TRUE(train(options, [](int) { return 0; }).stopped);
  EXPECT_THAT(checkpoints(), ElementsAre("step-00000008", "step-00000011", "step-00000012"));
}

TEST_F(BestRun, EndsWorkersThatTakeBatchesWhenTheyAreReady) {
  Options options;
  options.epochs = 1000;
  options.strategy.name = "downpour";
  options.checkpoint_every = 0;
  options.on_step = [](const StepReport& report, Control& control) {
    if (report.step >= 3) control.stop();
  };
  const auto result = train(options, [](int) { return 0; });
  EXPECT_TRUE(result.ended_early);
  EXPECT_LT(result.epochs, 900);
}

}  // namespace best_test
}  // namespace weft::train
