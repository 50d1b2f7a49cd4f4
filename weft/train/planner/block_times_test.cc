#include "weft/train/planner/internal/block_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/parallel/compose/modules.h"

namespace weft::train::internal {
namespace block_times_test {

namespace nn = torch::nn;
using namespace std::chrono_literals;

// A linear layer that counts its calls, and takes a time for each sample.
struct Counted : nn::Module {
  Counted(std::int64_t from, std::int64_t to, std::atomic<int>& calls,
          std::chrono::milliseconds pause = {})
      : calls_(calls), pause_(pause) {
    layer = register_module("layer", nn::Linear(from, to));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    ++calls_;
    if (pause_.count() > 0) std::this_thread::sleep_for(pause_ * x.size(0));
    return layer(x);
  }
  nn::Linear layer = nullptr;
  std::atomic<int>& calls_;
  const std::chrono::milliseconds pause_;
};

Task task_of(const std::vector<std::shared_ptr<Counted>>& layers) {
  nn::Sequential net;
  for (const auto& layer : layers) net->push_back(layer);
  Task task(parallel::blocks_of(net), [](const torch::Tensor& y, const torch::Tensor& target) {
    return torch::cross_entropy_loss(y, target);
  });
  task.train = samples(torch::ones({64, 8}), torch::zeros({64}, torch::kLong));
  return task;
}

TEST(BlockTimes, ABlockLikeOneBeforeItIsNotMeasuredAgain) {
  std::vector<std::atomic<int>> calls(4);
  const auto layer = [&](std::size_t number, std::int64_t to) {
    return std::make_shared<Counted>(8, to, calls[number]);
  };
  const Task task = task_of({layer(0, 8), layer(1, 8), layer(2, 8), layer(3, 8)});
  comm::replicate(
      1,
      [&](const Group& world) {
        const plan::Profile profile = time_blocks(task, world, {.batches = {1, 4}});
        ASSERT_EQ(profile.blocks.size(), 4u);
        EXPECT_THAT(profile.batches, testing::ElementsAre(1, 4));
        // The inputs of the first block need no gradients, so the second one is not like it.
        EXPECT_GT(calls[0].load(), 0);
        EXPECT_GT(calls[1].load(), 0);
        EXPECT_EQ(calls[2].load(), 0);
        EXPECT_GT(calls[3].load(), 0) << "with the loss";
        EXPECT_EQ(profile.blocks[2].forward, profile.blocks[1].forward);
        EXPECT_EQ(profile.blocks[2].backward, profile.blocks[1].backward);
        EXPECT_EQ(profile.blocks[2].parameters, 72);
        EXPECT_EQ(profile.blocks[2].output_bytes, 32);
        EXPECT_EQ(profile.blocks[3].output_bytes, 4 / 4.0) << "of the loss, by sample";
      },
      20s);
}

TEST(BlockTimes, LeavesOutSamplesThatWouldTakeTooLongOrTooMuch) {
  std::vector<std::atomic<int>> calls(3);
  const Task task = task_of({std::make_shared<Counted>(8, 8, calls[0]),
                             std::make_shared<Counted>(8, 16, calls[1], 5ms),
                             std::make_shared<Counted>(16, 8, calls[2])});
  comm::replicate(
      2,
      [&](const Group& world) {
        BlockTimesOptions options{.batches = {1, 4, 32}};
        options.most_seconds = 0.1;  // 5 ms, 20 ms, not 160 ms
        const plan::Profile profile = time_blocks(task, world, options);
        EXPECT_THAT(profile.batches, testing::ElementsAre(1, 4));
        for (const plan::MeasuredBlock& block : profile.blocks) {
          EXPECT_EQ(block.forward.size(), 2u) << block.name;
          EXPECT_EQ(block.backward.size(), 2u) << block.name;
        }
        EXPECT_EQ(plan::parse_profile(plan::to_toml(profile), "a profile").batches.size(), 2u);
        options.most_seconds = 10;
        options.most_bytes = 8 * 4 * 3;  // of the first block, with its input
        EXPECT_THAT(time_blocks(task, world, options).batches, testing::ElementsAre(1));
      },
      60s);
}

}  // namespace block_times_test
}  // namespace weft::train::internal
