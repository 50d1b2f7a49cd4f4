// Workers in a last batch that is too small for the batch norms of all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <numeric>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace small_batches_test {

namespace nn = torch::nn;
using testing::ElementsAre;

// Optimizer steps of each rank in an epoch: one batch of `batch` samples, and one of `last`.
std::vector<std::int64_t> steps_of(const std::string& strategy, const std::string& mesh,
                                   std::int64_t last, std::int64_t batch = 16) {
  set_log_level(LogLevel::kError);
  const TempDir folder;
  Options options;
  options.epochs = 1;
  options.batch = batch;
  options.mesh = mesh;
  options.dir = folder.path();
  options.prefetch = 0;
  options.strategy = {.name = strategy, .period = 100};
  options.plan.optimizer =
      engine::optimizer_spec(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1), {});
  std::vector<std::int64_t> steps(4);
  replicate(4, [&](const Group& group) {
    torch::manual_seed(1);
    nn::Sequential net(nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2), nn::Flatten(), nn::Linear(8, 1));
    Task task(parallel::blocks_of(net),
              [](const at::Tensor& output, const at::Tensor&) { return output.square().mean(); });
    task.train = samples(torch::rand({batch + last, 1, 4, 4}), torch::zeros({batch + last, 1}));
    Trainer trainer(std::move(task), options, group);
    const TrainResult result = trainer.run();
    EXPECT_EQ(result.steps, 2);
    steps[static_cast<std::size_t>(group.rank())] = trainer.model().steps();
  });
  return steps;
}

TEST(SmallBatches, AWorkerWithoutSamplesLeavesItsWeightsAlone) {
  EXPECT_THAT(steps_of("local_sgd", "dp=4", 5), ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(steps_of("local_sgd", "dp=4", 1), ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(steps_of("local_sgd", "dp=2,fsdp=2", 5), ElementsAre(2, 2, 1, 1));
}

// Whoever takes the parts: those of the first batch, and of the last one those with samples.
TEST(SmallBatches, WorkersThatTakePartsWhenTheyAreReadySkipEmptyOnes) {
  for (const char* mesh : {"dp=4", "dp=2,fsdp=2"}) {
    const auto steps = steps_of("downpour", mesh, 5);
    EXPECT_EQ(std::accumulate(steps.begin(), steps.end(), std::int64_t{0}), 4 + 2) << mesh;
  }
}

// Two parts of each batch have samples, and the last batch is a whole one.
TEST(SmallBatches, WorkersSkipEmptyPartsOfAWholeBatch) {
  const auto steps = steps_of("downpour", "dp=4", /*last=*/4, /*batch=*/4);
  EXPECT_EQ(std::accumulate(steps.begin(), steps.end(), std::int64_t{0}), 2 + 2);
}

}  // namespace small_batches_test
}  // namespace weft::train
