// Asynchronous: helpers of tests of workers that take batches when they are ready. Needs GoogleTest
// and is not installed.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/trainer.h"

namespace weft::train::asynchronous_test {

inline constexpr std::int64_t kSamples = 101, kTest = 10;

// How often each sample was in a loss of training, and how often each rank computed one.
struct Seen {
  std::vector<std::atomic<int>> samples = std::vector<std::atomic<int>>(kSamples);
  std::vector<std::atomic<int>> losses = std::vector<std::atomic<int>>(8);

  std::vector<int> counts() const { return {samples.begin(), samples.end()}; }
};

// The target of a sample is its number; that of a test sample is below 0.
inline Task counting_task(Seen& seen, int rank, int sleep_ms) {
  torch::manual_seed(1);
  Task task(parallel::blocks_of(torch::nn::Linear(3, 1)),
            [&seen, rank, sleep_ms](const at::Tensor& output, const at::Tensor& target) {
              if (target.numel() > 0 && target[0].item<std::int64_t>() >= 0) {
                ++seen.losses[static_cast<std::size_t>(rank)];
                for (std::int64_t i = 0; i < target.numel(); ++i)
                  ++seen.samples[static_cast<std::size_t>(target[i].item<std::int64_t>())];
                std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
              }
              return output.square().mean();
            });
  const at::Tensor x = torch::arange(kSamples * 3, torch::kFloat).sin().view({kSamples, 3});
  task.train = samples(x, torch::arange(kSamples));
  task.test = samples(x.narrow(0, 0, kTest), torch::full({kTest}, -1, torch::kLong));
  return task;
}

class Asynchronous : public testing::Test {
 protected:
  Asynchronous() { set_log_level(LogLevel::kError); }

  Options options(const strategy::Strategy& strategy, const std::string& name = "run") const {
    Options options;
    options.epochs = 3;
    options.batch = 16;
    options.dir = folder_.path();
    options.name = name;
    options.strategy = strategy;
    options.log_every = 2;
    options.checkpoint_every = 100;  // only at the end
    options.checkpoint_minutes = 0;
    options.resume = std::filesystem::exists(folder_ / name);
    options.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(0.01), {});
    return options;
  }

  TrainResult train(int world, const Options& options, Seen& seen, int slow_rank = -1,
                    int sleep_ms = 0) const {
    TrainResult result;
    const auto on_rank = [&](const Group& group) {
      const int sleep = group.rank() == slow_rank ? 4 * sleep_ms : sleep_ms;
      Options mine = options;
      if (group.rank() != group.size() - 1) mine.should_stop = nullptr;
      Trainer trainer(counting_task(seen, group.rank(), sleep), mine, group);
      const TrainResult got = trainer.run();
      if (group.rank() == 0) result = got;
    };
    if (over_tcp_) {
      comm::replicate_over_tcp(world, on_rank);
    } else {
      replicate(world, on_rank);
    }
    return result;
  }

  std::vector<nlohmann::json> records(const std::string& name = "run") const {
    std::vector<nlohmann::json> all;
    std::ifstream in(folder_ / (name + "/metrics.jsonl"));
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  TempDir folder_;
  bool over_tcp_ = false;  // ranks communicate over TCP, as on several hosts
};

}  // namespace weft::train::asynchronous_test
