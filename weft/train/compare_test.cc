// The trainer compares replicas, and finds a bit that flips in the weights of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/dataset.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace compare_test {

namespace nn = torch::nn;
using testing::HasSubstr;

struct Numbers : torch::data::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t i) override {
    return {torch::full({4}, static_cast<double>(i % 7)), torch::tensor(static_cast<int>(i % 2))};
  }
  std::optional<std::size_t> size() const override { return 48; }
};

// A step in whose loss the sign of a weight flips, in each of these tensors.
struct Flip {
  int step;
  std::vector<std::string> tensors = {"0.weight"};
};

// Trains 8 steps. The flip is on the last rank.
TrainResult train(const std::string& dir, int world, const Flip& flip, std::int64_t compare_steps) {
  TrainResult result;
  replicate(world, [&](const Group& group) {
    torch::manual_seed(1);
    const nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2));
    const auto parameters = net->named_parameters();
    int calls = 0;
    const bool here = group.rank() == world - 1;
    Task task(parallel::blocks_of(net), [=](const at::Tensor& y, const at::Tensor& target) mutable {
      if (here && ++calls == flip.step) {
        for (const std::string& name : flip.tensors) parameters[name].data_ptr<float>()[5] *= -1;
      }
      return nn::functional::cross_entropy(y, target.to(torch::kLong));
    });
    task.train = dataset(Numbers());
    Options options;
    options.epochs = 1;
    options.batch = 6;
    options.dir = dir;
    options.name = "run";
    options.mesh = "dp=0";
    options.prefetch = 0;
    options.compare_steps = compare_steps;
    options.plan.weights = engine::Weights::kPrivate;
    options.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.1), {});
    Trainer trainer(std::move(task), options, group);
    const TrainResult one = trainer.run();
    if (group.rank() == 0) result = one;
  });
  return result;
}

TEST(CompareWhileTraining, HealsARankOfThree) {
  const TempDir dir;
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  EXPECT_EQ(train(dir.path(), 3, {.step = 3}, 1).steps, 8);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("replicas differ after step 3: 0.weight, on rank 2: a bit has "));
  EXPECT_THAT(log, HasSubstr("it has got the values of the majority"));
  EXPECT_EQ(log.find("replicas differ"), log.rfind("replicas differ"));
}

TEST(CompareWhileTraining, CountsTheOtherTensorsThatDiffer) {
  const TempDir dir;
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  train(dir.path(), 3, {.step = 3, .tensors = {"0.weight", "2.weight"}}, 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::ContainsRegex("replicas differ after step 3: [02].weight and 1 more tensor, "
                                     "on rank 2: "));
}

TEST(CompareWhileTraining, EndsWithoutAMajority) {
  const TempDir dir;
  expect_refused(
      [&] { train(dir.path(), 2, {.step = 3}, 4); }, Errc::kCorrupt,
      "replicas differ after step 4: 0.weight, on ranks 0, 1: a bit has flipped in memory, or a "
      "processor has computed wrongly; there is no majority, so resume from a checkpoint before "
      "step 1");
}

// The steps are not compared then. At the end, one model comes from all ranks.
TEST(CompareWhileTraining, CanBeOffUntilTheModelIsGathered) {
  const TempDir dir;
  expect_refused([&] { train(dir.path(), 2, {.step = 3}, 0); }, Errc::kInvalidArgument,
                 "the values of '0.0.weight' differ between rank 0 and rank 1");
}

}  // namespace compare_test
}  // namespace weft::train
