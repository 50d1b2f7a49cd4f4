// The module that the program holds, and the files of its weights, after training.
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/processes.h"
#include "weft/parallel/compose/modules.h"
#include "weft/parallel/compose/parallelize.h"
#include "weft/parallel/tensor/linear.h"
#include "weft/train/export.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace trained_model_test {

namespace nn = torch::nn;

at::Tensor inputs() { return (torch::arange(64) * 0.37).sin().view({32, 2}); }

// The same on every rank and thread.
nn::Sequential net() {
  nn::Sequential all(nn::Linear(2, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Linear(8, 8), nn::ReLU(),
                     nn::Linear(8, 2));
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (const auto& parameter : all->parameters())
    parameter.copy_(
        ((torch::arange(parameter.numel()) * 0.7 + ++phase).sin() * 0.5).view(parameter.sizes()));
  return all;
}

at::Tensor answer(nn::Sequential own) {
  const torch::NoGradGuard no_grad;
  own->eval();
  return own->forward(inputs());
}

class TrainedModel : public testing::Test {
 protected:
  TrainedModel() { set_log_level(LogLevel::kError); }

  Options options(const std::string& mesh) const {
    Options options;
    options.epochs = 3;
    options.batch = 16;
    options.dir = folder_.path();
    options.name = mesh;
    options.mesh = mesh;
    options.prefetch = 0;
    options.plan.micro_batches = 1;
    options.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.1), {});
    return options;
  }

  static Task task(parallel::BlockModel model) {
    Task task(std::move(model),
              [](const torch::Tensor& y, const torch::Tensor& t) { return torch::mse_loss(y, t); });
    task.train = task.test = samples(inputs(), inputs().flip(1));
    return task;
  }

  // Trains, and requires on every rank that the program's module, and what is saved and loaded
  // again, answer with the loss of the last evaluation.
  void expect_trained(int world, const Options& options, const std::string& what) const {
    replicate(world, [&](const Group& group) {
      nn::Sequential own = net(), loaded = net();
      double loss = 0;
      {
        Trainer trainer(task(parallel::blocks_of(own)), options, group);
        loss = trainer.run().loss;
        trainer.save(folder_ / ("weights-" + what));
        trainer.save(folder_ / ("weights-" + what));  // replaces them
        group.barrier();
      }
      const at::Tensor mine = answer(own);
      EXPECT_NEAR(torch::mse_loss(mine, inputs().flip(1)).item<double>(), loss, 1e-5) << what;
      EXPECT_FALSE(at::allclose(mine, answer(net()), 1e-3)) << what;
      load_weights(loaded, folder_ / ("weights-" + what));
      EXPECT_TRUE(at::equal(answer(loaded), mine)) << what;
      load_weights(loaded, folder_ / options.name);  // the run
      EXPECT_TRUE(at::equal(answer(loaded), mine)) << what;
    });
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / ("weights-" + what)), {}),
              1)
        << what;
  }

  TempDir folder_;
};

TEST_F(TrainedModel, IsTheProgramsModuleUnderEveryPlan) {
  for (const auto& [world, mesh] : {std::pair{1, "dp=1"},
                                    {2, "dp=2"},
                                    {2, "fsdp=2"},
                                    {2, "pp=2"},
                                    {4, "dp=2,pp=2"},
                                    {4, "pp=2,fsdp=2"}})
    expect_trained(world, options(mesh), mesh);
  for (const int stage : {1, 2, 3}) {
    auto with = options("fsdp=2");
    with.name = "zero-" + std::to_string(stage);
    with.plan.zero_stage = stage;
    with.plan.weights = engine::Weights::kPrivate;
    expect_trained(2, with, with.name);
  }
  auto with = options("pp=2");
  with.name = "interleaved";
  with.plan.schedule = schedule::pipeline::Algorithm::kInterleaved;
  with.plan.micro_batches = 2;
  expect_trained(2, with, with.name);
}

// Readers would take the index of other files.
TEST_F(TrainedModel, IsNotSavedBesideFilesOfAnotherDivision) {
  const std::string folder = folder_ / "weights";
  make_directories(folder);
  write_file_atomic(folder + "/model.safetensors.index.json", "{}");
  replicate(2, [&](const Group& group) {
    auto with = options("dp=2");
    with.epochs = 1;
    Trainer trainer(task(parallel::blocks_of(net())), with, group);
    trainer.run();
    expect_refused([&] { trainer.save(folder); }, Errc::kInvalidArgument,
                   "has model.safetensors.index.json, which readers would take");
    group.barrier();
  });
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST_F(TrainedModel, IsTheResultOfTheStrategyOnEveryRank) {
  for (const char* strategy : {"local_sgd", "slow_momentum", "diloco", "easgd", "gossip",
                               "downpour", "easgd_async", "ad_psgd"}) {
    auto with = options("dp=2");
    with.name = strategy;
    with.strategy.name = strategy;
    with.epochs = 5;
    expect_trained(2, with, strategy);
  }
  auto with = options("dp=2,pp=2");
  with.strategy.name = "local_sgd";
  expect_trained(4, with, "local_sgd over stages");
}

TEST_F(TrainedModel, IsThatOfTheCheckpointWhereNothingIsLeftToTrain) {
  const auto first = options("pp=2");
  expect_trained(2, first, "first");
  auto again = first;
  again.resume = true;
  expect_trained(2, again, "again");
}

// Layers that are divided over ranks have no module of the program; their files are whole.
TEST_F(TrainedModel, IsSavedWholeWhereLayersAreDivided) {
  replicate(2, [&](const Group& group) {
    parallel::BlockModel model;
    model.blocks.push_back(
        {"mlp", [](const parallel::Contexts& with) {
           return engine::block(parallel::Linear(
               parallel::LinearOptions{
                   .in = 2, .out = 2, .split = parallel::Split::kColumn, .gather_output = true},
               with.tp));
         }});
    model.splits = {{"hidden", 2}};
    Trainer trainer(task(std::move(model)), options("tp=2"), group);
    const double loss = trainer.run().loss;
    trainer.save(folder_ / "whole");
    nn::Linear plain(2, 2);
    load_weights(plain, folder_ / "whole", {.prefix = "mlp."});
    EXPECT_NEAR(torch::mse_loss(plain(inputs()), inputs().flip(1)).item<double>(), loss, 1e-5);
  });
}

TEST_F(TrainedModel, LoadsOnlyWeightsThatFit) {
  nn::Sequential own = net();
  checkpoint::TensorMap tensors;
  for (const auto& item : own->named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : own->named_buffers()) tensors[item.key()] = item.value();
  const std::string file = folder_ / "model.safetensors";
  checkpoint::save_safetensors(file, {tensors, {}});
  nn::Sequential loaded(nn::Linear(2, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Linear(8, 8),
                        nn::ReLU(), nn::Linear(8, 2));
  load_weights(loaded, file);
  EXPECT_TRUE(at::equal(answer(loaded), answer(own)));
  loaded->to(torch::kDouble);
  load_weights(loaded, folder_.path());  // converted
  EXPECT_EQ(loaded->parameters()[0].scalar_type(), torch::kDouble);
  const auto refused = [&](const nn::Sequential& module, const std::string& from,
                           const std::string& what, WeightsOptions with = {}) {
    const at::Tensor before = module->parameters()[0].clone();
    expect_refused([&] { load_weights(module, from, with); }, Errc::kInvalidArgument, what);
    EXPECT_TRUE(at::equal(before, module->parameters()[0]));
  };
  refused(nn::Sequential(nn::Linear(2, 8)), file, "the module has no '1.bias', which is in ");
  refused(nn::Sequential(nn::Linear(8, 2)), file, "'0.weight' has the shape [8, 2] in ");
  refused(nn::Sequential(nn::Linear(2, 8), nn::Linear(8, 8)), file, "'1.weight' has the shape [8]");
  refused(own, file, "has no 'net.0.weight'", {.prefix = "net."});
  refused(own, file, "is no run", {.best = true});
  make_directories(folder_ / "empty");
  refused(own, folder_ / "empty", "holds no weights");
  refused(own, folder_ / "nowhere", "holds no weights");
  tensors["0.weight"] = at::ones({8, 2}, at::kChar);  // quantized, and its scale is elsewhere
  const std::string quantized = folder_ / "int8.safetensors";
  checkpoint::save_safetensors(quantized, {tensors, {}});
  refused(own, quantized, "'0.weight' is Char in ");
}

// weft notices such a change, also where overlap_forward delays the update of a weight.
TEST_F(TrainedModel, LoadsByOperationsOnTheParameters) {
  nn::Sequential module = net();
  checkpoint::TensorMap tensors;
  for (const auto& item : module->named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : module->named_buffers()) tensors[item.key()] = item.value();
  const std::string file = folder_ / "model.safetensors";
  checkpoint::save_safetensors(file, {tensors, {}});
  for (const at::Tensor& parameter : module->parameters()) {
    const auto version = parameter._version();
    load_weights(module, file);
    EXPECT_GT(parameter._version(), version);
  }
}

// As a language model's embedding and its last layer.
TEST_F(TrainedModel, LoadsASharedTensorOnlyIfItsNamesHaveTheSameValues) {
  const at::Tensor first = at::ones({2, 2}), second = at::full({2, 2}, 3.0);
  nn::Linear layer(nn::LinearOptions(2, 2).bias(false));
  const nn::Sequential twice(layer, layer);
  const std::string file = folder_ / "two.safetensors";
  checkpoint::save_safetensors(file, {{{"0.weight", first}, {"1.weight", second}}, {}});
  expect_refused([&] { load_weights(twice, file); }, Errc::kInvalidArgument,
                 "'0.weight' and '1.weight' are one tensor in the module");
  checkpoint::save_safetensors(file, {{{"0.weight", second}, {"1.weight", second.clone()}}, {}});
  load_weights(twice, file);
  EXPECT_TRUE(at::equal(layer->weight, second));
}

// Forks, so it needs a process in which libtorch has started no threads.
class TrainedModelInProcesses : public TrainedModel {};

// Two stages need an even number of ranks, so rank 2 leaves.
TEST_F(TrainedModelInProcesses, IsRefusedWithItsReasonOnARankThatHasLeftTheJob) {
  const Options with = options("pp=2");
  comm::Processes processes(3, [&](const comm::Me& me) {
    ::setenv("WEFT_ELASTIC", "1", 1);
    ::setenv("WEFT_MIN_RANKS", "2", 1);
    Trainer trainer(task(parallel::blocks_of(net())), with,
                    comm::form_group(me.store, me.id, 3, {.timeout = std::chrono::seconds(20)}));
    if (me.id < 2) return trainer.model().num_parameters() > 0 ? 0 : 1;
    if (!trainer.run().left || !trainer.run_folder().empty()) return 2;
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { trainer.model(); }, [&] { trainer.save(folder_ / "weights"); }}) {
      const std::string why = refusal(call);
      if (why.find("this rank is no longer part of the job") == std::string::npos) return 3;
    }
    return 0;
  });
  EXPECT_EQ(processes.codes(), (std::vector<int>{0, 0, 0}));
}

}  // namespace trained_model_test
}  // namespace weft::train
