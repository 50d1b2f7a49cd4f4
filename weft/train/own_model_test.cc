// The trainer with a module, loss and data set of the program instead of a recipe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/nn/functional.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/comm/replicate.h"
#include "weft/observe/report/run_list.h"
#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/train/dataset.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace own_model_test {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;
using State = std::map<std::string, at::Tensor>;

// Points in the plane, labeled by whether they lie in a ring.
struct Points : torch::data::Dataset<Points> {
  explicit Points(std::int64_t count) {
    const at::Tensor k = torch::arange(count, torch::kDouble);
    x = torch::stack({(k * 0.7548776662).frac() * 2 - 1, (k * 0.5698402910).frac() * 2 - 1}, 1)
            .to(torch::kFloat);
    const at::Tensor radius = x.square().sum(1);
    y = radius.gt(0.2).logical_and(radius.lt(0.8)).to(torch::kLong);
  }
  torch::data::Example<> get(std::size_t i) override {
    return {x[static_cast<std::int64_t>(i)], y[static_cast<std::int64_t>(i)]};
  }
  std::optional<std::size_t> size() const override { return static_cast<std::size_t>(x.size(0)); }
  at::Tensor x, y;
};

// Initialized without random numbers, so that it is the same on every rank and thread.
nn::Sequential net() {
  nn::Sequential all(nn::Linear(2, 16), nn::BatchNorm1d(16), nn::ReLU(), nn::Linear(16, 16),
                     nn::ReLU(), nn::Linear(16, 2));
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& item : all->named_parameters()) {
    const at::Tensor values =
        (torch::arange(item.value().numel(), torch::kDouble) * 0.7 + ++phase).sin() * 0.5;
    if (item.key() != "1.weight")
      item.value().copy_(values.view(item.value().sizes()));  // the batch norm weight stays 1
  }
  return all;
}

struct NetImpl : nn::Module {
  NetImpl() : fc(register_module("fc", nn::Linear(2, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  nn::Linear fc;
};
TORCH_MODULE(Net);

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return nn::functional::cross_entropy(output, target);
}

Metric accuracy() {
  return {"accuracy", [](const at::Tensor& output, const at::Tensor& target) {
            return output.argmax(1).eq(target).to(torch::kDouble).mean();
          }};
}

Task ring(parallel::BlockModel model) {
  Task task(std::move(model), cross_entropy);
  task.train = dataset(Points(96));
  task.test = dataset(Points(50));
  task.metrics.push_back(accuracy());
  return task;
}

struct Outcome {
  TrainResult result;
  State state;
};

class OwnModel : public testing::Test {
 protected:
  OwnModel() { set_log_level(LogLevel::kError); }

  Options options(const std::string& name, const std::string& mesh) const {
    Options options;
    options.epochs = 2;
    options.batch = 16;
    options.dir = folder_.path();
    options.name = name;
    options.mesh = mesh;
    options.prefetch = 0;
    options.resume = std::filesystem::exists(folder_ / name);
    options.plan.optimizer =
        engine::optimizer_spec(torch::optim::SGDOptions(0.1).momentum(0.9), {});
    return options;
  }

  Outcome train(int world, const Options& options, const std::function<Task()>& task) const {
    Outcome outcome;
    replicate(world, [&](const Group& group) {
      Trainer trainer(task(), options, group);
      const TrainResult result = trainer.run();
      const auto state = trainer.model().state();
      if (group.rank() == 0) outcome = {result, {state.begin(), state.end()}};
    });
    return outcome;
  }
  Outcome train(int world, const Options& options) const {
    return train(world, options, [] { return ring(parallel::blocks_of(net())); });
  }

  std::string refused(int world, const Options& options, const std::function<Task()>& task,
                      Errc code) const {
    const std::string what = refusal([&] { train(world, options, task); }, code);
    EXPECT_FALSE(std::filesystem::exists(folder_ / options.name)) << what;
    return what;
  }

  static void expect_close(const State& a, const State& b, double most) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, tensor] : a) {
      const at::Tensor mine = tensor.to(at::kDouble), other = b.at(name).to(at::kDouble);
      EXPECT_TRUE(at::allclose(mine, other, most, most))
          << name << " by " << (mine - other).abs().max().item<double>();
    }
  }

  TempDir folder_;
};

TEST_F(OwnModel, NamesOptionsThatHaveNoEffectOnce) {
  auto with = options("run", "dp=0");
  with.epochs = 1;
  with.copy_steps = 5;
  with.min_improvement = 0.5;
  set_log_level(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  train(2, with);
  const std::string log = testing::internal::GetCapturedStderr();
  for (const char* line : {"train.copy_steps (the program) has no effect: no launcher",
                           "train.min_improvement (the program) has no effect: neither"}) {
    EXPECT_THAT(log, HasSubstr(line));
    EXPECT_EQ(log.find(line), log.rfind(line));
  }
}

TEST_F(OwnModel, IsTrainedMeasuredAndSavedUnderItsOwnNames) {
  auto with = options("run", "dp=0");
  with.epochs = 40;
  with.plan.optimizer = engine::optimizer_spec(torch::optim::AdamWOptions(0.02), {});
  const auto outcome = train(2, with);
  EXPECT_GT(outcome.result.accuracy, 0.7);
  EXPECT_EQ(outcome.result.metrics.at(0).first, "accuracy");
  EXPECT_EQ(outcome.result.steps, 40 * 6);
  for (const char* file : {"config.toml", "metrics.jsonl", "log.jsonl"})
    EXPECT_TRUE(std::filesystem::exists(folder_ / ("run/" + std::string(file))));
  const auto saved =
      checkpoint::load(*checkpoint::latest(folder_ / "run/ckpt").folder).parts.at("model");
  EXPECT_EQ(saved.size(), net()->named_parameters().size() + net()->named_buffers().size());
  for (const auto& item : net()->named_buffers())
    EXPECT_EQ(saved.count(item.key()), 1u) << item.key();
  EXPECT_GT(saved.at("1.running_var").sub(1).abs().max().item<double>(), 0);
}

// The last batch has two samples. A rank with one of them could not train its batch norm.
TEST_F(OwnModel, TrainsALastBatchThatIsTooSmallForTheBatchNormsOfAllRanks) {
  const auto task = [] {
    Task task = ring(parallel::blocks_of(net()));
    task.train = dataset(Points(34));
    return task;
  };
  EXPECT_EQ(train(1, options("one", "dp=0"), task).result.steps, 6);
  EXPECT_EQ(train(2, options("two", "dp=0"), task).result.steps, 6);
  EXPECT_EQ(train(2, options("sharded", "fsdp=2"), task).result.steps, 6);
}

TEST_F(OwnModel, LearnsTheSameUnderEveryPlanWithSynchronizedBatchNorm) {
  auto with = options("one", "dp=0");
  const auto one = train(1, with);
  with.plan.sync_batch_norm = true;
  for (const auto& [world, mesh] : {std::pair{2, "dp=2"},
                                    {3, "dp=3"},
                                    {2, "fsdp=2"},
                                    {2, "pp=2"},
                                    {4, "dp=2,pp=2"},
                                    {4, "pp=2,fsdp=2"}}) {
    SCOPED_TRACE(mesh);
    auto divided = with;
    divided.name = mesh;
    divided.mesh = mesh;
    divided.plan.micro_batches = 1;
    const auto outcome = train(world, divided);
    expect_close(outcome.state, one.state, 1e-3);
    EXPECT_NEAR(outcome.result.loss, one.result.loss, 1e-4);
  }
}

TEST_F(OwnModel, HasTheBitsOfOneProcessWithMicroShardsIncludingBatchNormStatistics) {
  auto with = options("one", "dp=0");
  with.plan.micro_shards = 4;
  const auto one = train(1, with);
  EXPECT_EQ(one.state.at("1.num_batches_tracked").item<std::int64_t>(), 12);
  for (const auto& [world, mesh] :
       {std::pair{4, "dp=4"}, {2, "fsdp=2"}, {2, "pp=2"}, {4, "pp=2,dp=2"}}) {
    SCOPED_TRACE(mesh);
    auto divided = with;
    divided.name = mesh;
    divided.mesh = mesh;
    if (std::string(mesh) == "pp=2") divided.plan.recompute = parallel::Recompute::kFull;
    const auto outcome = train(world, divided);
    ASSERT_EQ(outcome.state.size(), one.state.size());
    for (const auto& [name, tensor] : one.state)
      EXPECT_TRUE(at::equal(tensor, outcome.state.at(name))) << name;
    EXPECT_EQ(outcome.result.loss, one.result.loss);
  }
}

// All replicas and the checkpoint have the running statistics of the first replica.
TEST_F(OwnModel, ResumesFromItsCheckpointAsIfItHadNotStopped) {
  for (const std::string mesh : {"dp=2", "fsdp=2", "pp=2"}) {
    SCOPED_TRACE(mesh);
    const auto whole = train(2, options("whole-" + mesh, mesh));
    auto cut = options("cut-" + mesh, mesh);
    cut.max_steps = 5;
    EXPECT_EQ(train(2, cut).result.steps, 5);
    const auto resumed = train(2, options("cut-" + mesh, mesh));
    EXPECT_EQ(resumed.result.steps, 12);
    for (const auto& [name, tensor] : whole.state)
      EXPECT_TRUE(at::equal(tensor, resumed.state.at(name))) << name;
    EXPECT_EQ(resumed.result.accuracy, whole.result.accuracy);
  }
}

TEST_F(OwnModel, ResumesWithDataOfAnotherSizeOnlyBetweenEpochs) {
  const auto with_samples = [](std::int64_t count) {
    return [count] {
      Task task = ring(parallel::blocks_of(Net()));
      task.train = dataset(Points(count));
      return task;
    };
  };
  auto cut = options("run", "dp=0");
  cut.max_steps = 4;
  train(1, cut, with_samples(96));
  EXPECT_THAT(
      refusal([&] { train(1, options("run", "dp=0"), with_samples(128)); }, Errc::kBadConfig),
      AllOf(HasSubstr("96 samples"), HasSubstr("128"), HasSubstr("give the same data")));
  auto epoch = options("run", "dp=0");
  epoch.epochs = 1;
  EXPECT_EQ(train(1, epoch, with_samples(96)).result.steps, 6);
  EXPECT_EQ(train(1, options("run", "dp=0"), with_samples(128)).result.steps, 6 + 8);
}

TEST_F(OwnModel, CountsTheLastEpochAlsoIfItHasNoEvaluation) {
  train(1, options("run", "dp=1"), [] {
    Task task = ring(parallel::blocks_of(Net()));
    task.test = {};
    return task;
  });
  EXPECT_EQ(observe::read_run(folder_ / "run").epoch, 2);
}

TEST_F(OwnModel, ShowsALossThatIsVerySmall) {
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  train(1, options("run", "dp=1"), [] {
    Task task(parallel::blocks_of(Net()), [](const at::Tensor& output, const at::Tensor& target) {
      return 1e-6 * cross_entropy(output, target);
    });
    task.train = dataset(Points(96));
    task.test = dataset(Points(50));
    return task;
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("epoch done epoch=2 train_loss=[1-9][0-9.]*e-0[67] "
                                     "test_loss=[1-9][0-9.]*e-0[67]"));
}

// Weights & Biases drops lines of steps before the last one.
TEST_F(OwnModel, WritesMetricsInTheOrderOfSteps) {
  auto with = options("run", "dp=0");
  with.batch = 8;  // 12 steps in an epoch
  with.eval_steps = 5;
  with.on_step = [](const StepReport& report, Control& control) {
    control.log("twice", 2.0 * static_cast<double>(report.step));
  };
  train(2, with, [] { return ring(parallel::blocks_of(Net())); });
  std::ifstream file(folder_ / "run/metrics.jsonl");
  std::vector<int> steps;
  std::map<std::string, int> lines;
  for (std::string line; std::getline(file, line);) {
    const auto record = nlohmann::json::parse(line);
    steps.push_back(record["step"]);
    for (const char* name : {"loss", "test_loss", "twice"})
      lines[name] += record.contains(name) ? 1 : 0;
    EXPECT_EQ(record.value("twice", 2 * steps.back()), 2 * steps.back());
  }
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end())) << testing::PrintToString(steps);
  EXPECT_EQ(lines, (std::map<std::string, int>{{"loss", 24}, {"test_loss", 6}, {"twice", 24}}));
}

TEST_F(OwnModel, WritesTheSlicesOfEachRankToFilesOfTheirOwn) {
  for (const bool async : {true, false}) {
    auto with = options(async ? "async" : "waiting", "fsdp=2");
    with.checkpoint_async = async;
    train(2, with);
    const std::string newest = *checkpoint::latest(folder_ / (with.name + "/ckpt")).folder;
    for (const char* file : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                             "optimizer-00002-of-00002.safetensors"})
      EXPECT_TRUE(std::filesystem::exists(newest + "/" + file)) << newest << " " << file;
  }
}

// Rank 0 waits in each save until rank 1 comes to it.
TEST_F(OwnModel, TheTimeOfASaveIsNoTrainingTime) {
  constexpr auto kPause = std::chrono::milliseconds(30);
  constexpr int kSteps = 6;
  auto with = options("run", "dp=2");
  with.epochs = 1;
  with.checkpoint_steps = 1;
  with.checkpoint_async = false;
  with.compare_steps = 0;
  std::atomic<std::int64_t> saves{0};
  TrainResult result;
  replicate(2, [&](const Group& group) {
    auto mine = with;
    const bool is_first = group.rank() == 0;
    mine.on_step = [&, is_first](const StepReport& report, Control&) {
      if (is_first) {
        saves = report.step;
        return saves.notify_all();
      }
      for (auto now = saves.load(); now < report.step; now = saves.load()) saves.wait(now);
      std::this_thread::sleep_for(kPause);
    };
    const auto outcome = Trainer(ring(parallel::blocks_of(net())), mine, group).run();
    if (is_first) result = outcome;
  });
  EXPECT_EQ(result.steps, kSteps);
  const double training_s = kSteps * 16 / result.samples_per_s;
  // The save after the last step is not within the epoch.
  EXPECT_GE(result.seconds - training_s,
            (kSteps - 2) * std::chrono::duration<double>(kPause).count());
}

// A file replaces the folder of checkpoints during the run.
TEST_F(OwnModel, TrainsToTheEndThenFailsIfTheLastCheckpointCannotBeWritten) {
  for (const bool async : {true, false}) {
    auto with = options(async ? "async" : "waiting", "dp=2");
    with.log_every = 1;
    with.checkpoint_async = async;
    const std::string folder = folder_ / (with.name + "/ckpt");
    std::atomic<int> looks = 0;  // calls, on both ranks
    with.should_stop = [&] {
      if (looks++ > 0) return false;
      std::filesystem::remove(folder);
      write_file_atomic(folder, "in the way");
      return false;
    };
    const std::string why = refusal([&] { train(2, with); });
    EXPECT_THAT(why, HasSubstr("the checkpoint of step 12 is not saved: rank 0: "));
    EXPECT_THAT(why, HasSubstr(folder));
    EXPECT_EQ(looks, 2 * 12);
  }
}

TEST_F(OwnModel, AcceptsAnyModuleAndDataAsTensorsOrAsAFunction) {
  const auto task = [] {
    Task whole = ring(parallel::blocks_of(Net()));
    const Points points(40);
    whole.train = samples(points.x, points.y);
    whole.test = samples(10, [points](const std::vector<std::int64_t>& indices) {
      const at::Tensor which = at::tensor(indices, at::kLong);
      return std::pair(points.x.index_select(0, which), points.y.index_select(0, which));
    });
    return whole;
  };
  const auto outcome = train(2, options("run", "fsdp=2"), task);
  EXPECT_EQ(outcome.result.steps, 6);
  EXPECT_EQ(outcome.state.count("fc.weight"), 1u);
}

TEST_F(OwnModel, SaysInOneLineWhatIsWrong) {
  const auto whole = [] { return ring(parallel::blocks_of(Net())); };
  EXPECT_THAT(refused(2, options("run", "pp=2"), whole, Errc::kBadConfig),
              HasSubstr("needs a model given as a list of blocks"));
  EXPECT_THAT(refused(2, options("run", "tp=2"), whole, Errc::kBadConfig),
              HasSubstr("divides layers, but this model has none"));
  EXPECT_THAT(refused(2, options("run", "dp=3"), whole, Errc::kBadConfig), HasSubstr("nearest"));
  EXPECT_THAT(refusal([&] { options("run", "xp=2"); }, Errc::kBadConfig), HasSubstr("xp"));
  auto narrow = options("run", "dp=0");
  narrow.batch = 1;
  EXPECT_THAT(refused(2, narrow, whole, Errc::kBadConfig),
              HasSubstr("a batch of 1 sample cannot be"));
  auto accumulating = options("run", "dp=0");
  accumulating.plan.accumulate = 4;
  EXPECT_THAT(refused(2, accumulating, whole, Errc::kBadConfig),
              AllOf(HasSubstr("options.plan.accumulate = 4 has no effect"),
                    HasSubstr("options.plan.micro_batches = 4")));
  const auto without = [&](const std::function<void(Task&)>& change) {
    return refused(
        1, options("run", "dp=0"),
        [&] {
          Task task = whole();
          change(task);
          return task;
        },
        Errc::kInvalidArgument);
  };
  EXPECT_THAT(without([](Task& task) { task.train = {}; }), HasSubstr("no training data"));
  EXPECT_THAT(without([](Task& task) { task.train = dataset(Points(0)); }),
              HasSubstr("the data set is empty"));
  EXPECT_THAT(without([](Task& task) { task.model.loss = {}; }), HasSubstr("has no loss"));
  EXPECT_THAT(without([](Task& task) { task.model.blocks.clear(); }), HasSubstr("has no model"));
  EXPECT_THAT(without([](Task& task) {
                task.train = samples(at::zeros({4, 2}), at::zeros({3}));
              }),
              HasSubstr("4 samples and y 3 targets"));
  const auto named = [&](const std::string& name) {
    return without([&](Task& task) { task.metrics.push_back({name, cross_entropy}); });
  };
  EXPECT_THAT(named("test_loss"), HasSubstr("'test_loss' has the name of one of weft's own"));
  EXPECT_THAT(named("accuracy"), HasSubstr("two metrics have the name 'accuracy'"));
  EXPECT_THAT(named(""), HasSubstr("a metric has no name"));
}

// A sum and a count of what is never there.
TEST_F(OwnModel, AMetricOfNothingIsNoNumber) {
  auto few = options("run", "dp=2");
  few.epochs = 1;
  const auto outcome = train(2, few, [] {
    Task task = ring(parallel::blocks_of(Net()));
    task.metrics.push_back(
        {"recall", [](const at::Tensor&, const at::Tensor&) { return at::zeros({2}); }});
    return task;
  });
  EXPECT_TRUE(std::isnan(outcome.result.metrics.at(1).second));
  EXPECT_GT(outcome.result.accuracy, 0);
}

// These errors appear in the first step, after the run folder is created.
TEST_F(OwnModel, ReportsFunctionsThatReturnAWrongLossMetricOrBatch) {
  int run = 0;
  const auto trouble = [&](int world, const std::function<void(Task&)>& change) {
    return refusal([&] {
      train(world, options("run" + std::to_string(++run), "dp=0"), [&] {
        Task task = ring(parallel::blocks_of(Net()));
        change(task);
        return task;
      });
    });
  };
  const auto each = [](const at::Tensor& output, const at::Tensor& target) {
    return nn::functional::cross_entropy(
        output, target, nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  };
  EXPECT_THAT(trouble(1, [&](Task& task) { task.model.loss = each; }),
              HasSubstr("the loss is a tensor of shape [16]; return one number"));
  EXPECT_THAT(trouble(2, [&](Task& task) { task.model.loss = each; }),
              HasSubstr("the loss is a tensor of shape [8]"));
  const auto constant = [](const at::Tensor&, const at::Tensor&) { return torch::zeros({}); };
  EXPECT_THAT(trouble(1, [&](Task& task) { task.model.loss = constant; }),
              HasSubstr("does not depend on the model's parameters"));
  EXPECT_THAT(trouble(1,
                      [&](Task& task) {
                        task.metrics = {{"each", each}};
                      }),
              HasSubstr("the metric each gives no number"));
  const auto short_of = [](const std::vector<std::int64_t>&) {
    return std::pair(at::zeros({3, 2}), at::zeros({3}, at::kLong));
  };
  EXPECT_THAT(trouble(1, [&](Task& task) { task.train = samples(32, short_of); }),
              HasSubstr("the data set gives 3 inputs for 16 samples"));
  const Points points(32);
  EXPECT_THAT(
      trouble(1, [&](Task& task) { task.train = samples(points.x.narrow(1, 0, 1), points.y); }),
      AllOf(HasSubstr("block model of Float[16, 1]"), HasSubstr("cannot be multiplied")));
  EXPECT_THAT(trouble(1, [&](Task& task) { task.train = samples(points.x, points.y + 7); }),
              HasSubstr("the loss of Float[16, 2]"));
}

// The first checkpoint would fail, or a recovery from copies in memory.
TEST_F(OwnModel, IsRefusedBeforeTheFirstStepIfAParameterHasANameThatNoCheckpointCanHave) {
  int steps = 0;
  Options counted = options("names", "dp=0");
  counted.on_step = [&](const StepReport&, Control&) { ++steps; };
  const auto with_a_bracket = [] {
    Net named;
    named->register_parameter("scale]", torch::ones({2}));
    return ring(parallel::blocks_of(named));
  };
  expect_refused([&] { train(1, counted, with_a_bracket); }, Errc::kInvalidArgument,
                 "no tensor can be called \"scale]\"");
  EXPECT_EQ(steps, 0);
}

TEST_F(OwnModel, SetLrInACallbackIsAnError) {
  Trainer* trainer = nullptr;
  Options few = options("rate", "dp=0");
  few.on_step = [&](const StepReport&, Control&) { trainer->model().set_lr(0.001); };
  expect_refused(
      [&] {
        comm::replicate(1, [&](const Group& group) {
          Trainer mine(ring(parallel::blocks_of(net())), few, group);
          trainer = &mine;
          mine.run();
        });
      },
      Errc::kInvalidArgument, "set_lr() of the model in a callback has no effect");
}

// The last batch has a row for one of two micro-batches.
TEST_F(OwnModel, FrozenBatchNormsStayInEvaluationMode) {
  comm::replicate(1, [&](const Group& group) {
    nn::Sequential all = net();
    all->ptr(1)->eval();
    Task task = ring(parallel::blocks_of(all));
    task.train = dataset(Points(9));
    Options few = options("frozen", "dp=0");
    few.epochs = 1;
    few.batch = 4;
    few.plan.micro_batches = 2;
    Trainer(std::move(task), few, group).run();
    EXPECT_FALSE(all->ptr(1)->is_training());
    EXPECT_TRUE(all->ptr(0)->is_training());
  });
}

}  // namespace own_model_test
}  // namespace weft::train
