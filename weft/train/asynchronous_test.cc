// Workers that take batches when they are ready: each sample once, nobody waits for a slow one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/parallel/compose/modules.h"
#include "weft/store/testing/store_processes.h"
#include "weft/train/internal/slow_rank.h"
#include "weft/train/testing/image_runs.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace asynchronous_test {

using internal::ImageRuns;
using internal::with;
using testing::Each;

constexpr std::int64_t kSamples = 101, kTest = 10;

// How often each sample was in a loss of training, and how often each rank computed one.
struct Seen {
  std::vector<std::atomic<int>> samples = std::vector<std::atomic<int>>(kSamples);
  std::vector<std::atomic<int>> losses = std::vector<std::atomic<int>>(8);

  std::vector<int> counts() const { return {samples.begin(), samples.end()}; }
};

// The target of a sample is its number; that of a test sample is below 0.
Task counting_task(Seen& seen, int rank, int sleep_ms) {
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

const std::vector<strategy::Strategy> kStrategies = {{.name = "downpour"},
                                                     {.name = "downpour", .staleness = 1},
                                                     {.name = "easgd_async", .period = 2},
                                                     {.name = "ad_psgd"},
                                                     {.name = "sync", .backup = 1},
                                                     {.name = "local_sgd", .period = 2}};

// Batches of 16 for 3 workers; the last one of an epoch has 5 samples. With a batch of 50, it has
// one, so that two workers have none.
TEST_F(Asynchronous, EverySampleIsUsedOnceAnEpoch) {
  for (const auto& strategy : kStrategies) {
    for (const std::int64_t batch : {16, 50}) {
      const std::string name =
          strategy.name + std::to_string(strategy.staleness) + "-" + std::to_string(batch);
      SCOPED_TRACE(name);
      Seen seen;
      Options with = options(strategy, name);
      with.batch = batch;
      with.eval_steps = 2;
      const TrainResult result = train(3, with, seen);
      EXPECT_THAT(seen.counts(), Each(3));
      EXPECT_EQ(result.steps, 3 * ((kSamples + batch - 1) / batch));
      EXPECT_EQ(result.epochs, 3);
    }
  }
}

TEST_F(Asynchronous, EverySampleIsUsedOnceByWorkersOfSeveralRanks) {
  Seen seen;
  Options with = options({.name = "downpour"});
  with.mesh = "dp=2,fsdp=2";
  train(4, with, seen);
  EXPECT_THAT(seen.counts(), Each(3));
}

TEST_F(Asynchronous, EverySampleIsUsedOnceWhereARunStopsAndResumes) {
  for (const auto& strategy : kStrategies) {
    const std::string name = strategy.name + std::to_string(strategy.staleness);
    SCOPED_TRACE(name);
    Seen seen;
    Options cut = options(strategy, name);
    cut.max_steps = 9;
    EXPECT_EQ(train(3, cut, seen).steps, 9);
    std::atomic<int> asked{0};
    Options stopped = options(strategy, name);
    stopped.should_stop = [&] { return ++asked == 1; };
    const TrainResult half = train(3, stopped, seen);
    EXPECT_TRUE(half.stopped);
    EXPECT_LT(half.steps, 21);
    EXPECT_EQ(train(2, options(strategy, name), seen).steps, 21);
    EXPECT_THAT(seen.counts(), Each(3));
  }
}

// One worker takes four times as long. With even shares, the others would wait for three quarters
// of their time.
TEST_F(Asynchronous, ASlowWorkerTakesFewerBatchesAndHoldsNobody) {
  for (const auto& strategy : kStrategies) {
    if (strategy.name == "local_sgd" || strategy.staleness >= 0) continue;
    SCOPED_TRACE(strategy.name);
    Seen seen;
    Options with = options(strategy, strategy.name);
    with.prefetch = 0;
    train(4, with, seen, /*slow_rank=*/3, /*sleep_ms=*/8);
    EXPECT_THAT(seen.counts(), Each(3));
    int others = 0;
    for (int rank = 0; rank < 3; ++rank) others += seen.losses[rank].load();
    EXPECT_LT(seen.losses[3].load() * 3, 0.6 * others);
    EXPECT_EQ(seen.losses[3].load() + others, 3 * 7 * 4);
  }
}

// The center is on servers, and the counter of batches in the store of the job.
TEST_F(Asynchronous, OnSeveralHostsASlowWorkerTakesFewerBatchesAndEachSampleIsUsedOnce) {
  const store::StoreProcess process({.program = WEFT_STORE_PROGRAM});
  ::setenv(store::kStoreVariable, process.socket().c_str(), 1);
  over_tcp_ = true;
  const std::vector<strategy::Strategy> strategies = {{.name = "downpour"},
                                                      {.name = "easgd_async", .period = 2}};
  for (const auto& strategy : strategies) {
    SCOPED_TRACE(strategy.name);
    Seen seen;
    Options cut = options(strategy, strategy.name);
    cut.prefetch = 0;
    cut.max_steps = 9;
    EXPECT_EQ(train(3, cut, seen, /*slow_rank=*/2, /*sleep_ms=*/8).steps, 9);
    cut.max_steps = 0;
    cut.resume = true;
    EXPECT_EQ(train(3, cut, seen, /*slow_rank=*/2, /*sleep_ms=*/8).steps, 21);
    EXPECT_THAT(seen.counts(), Each(3));
    const int others = seen.losses[0].load() + seen.losses[1].load();
    EXPECT_EQ(seen.losses[2].load() + others, 3 * 7 * 3);
    EXPECT_LT(seen.losses[2].load() * 2, 0.8 * others);
  }
  ::unsetenv(store::kStoreVariable);
}

TEST_F(Asynchronous, RanksReportWithoutAMeeting) {
  Seen seen;
  train(3, options({.name = "downpour"}), seen);
  std::int64_t last = 0;
  int with_loss = 0;
  double shares = 0;
  for (const auto& record : records()) {
    EXPECT_GE(record["step"], last);
    last = record["step"];
    if (record.contains("loss")) {
      ++with_loss;
      EXPECT_GT(record["loss"], 0);
      EXPECT_GT(record["samples_per_s"], 0);
      // 3 weights and a bias are added and pulled after each step.
      EXPECT_NEAR(record["shared_mb"].get<double>(), 2 * 4 * 4 / 1e6, 1e-9);
      EXPECT_TRUE(record.contains("staleness"));
    }
    for (const auto& [key, value] : record.items()) {
      if (key.starts_with("staleness_")) shares += value.get<double>();
    }
  }
  EXPECT_EQ(last, 21);
  EXPECT_GE(with_loss, 3);  // at least at the end of each epoch
  EXPECT_LE(with_loss, 12);
  EXPECT_NEAR(shares, 1, 1e-9);
}

TEST_F(Asynchronous, ALossThatStaysNotFiniteEndsTheRun) {
  Options with = options({.name = "easgd_async"});
  with.plan.optimizer = engine::optimizer_spec(torch::optim::SGDOptions(1e30), {});
  Seen seen;
  expect_refused([&] { train(2, with, seen); }, Errc::kBadConfig, "steps in a row: the run ends");
}

TEST_F(Asynchronous, StrategiesTrainImagesAndChangeTheNumberOfWorkers) {
  const std::vector<std::string> common = {"model.name=mlp", "model.hidden=[32]",
                                           "optimizer.lr=0.05"};
  const std::vector<std::vector<std::string>> kinds = {
      {"strategy.name=ad_psgd"},
      {"strategy.backup=1"},
      {"strategy.name=downpour", "strategy.delay_compensation=0.04", "optimizer.momentum=0"}};
  for (const auto& words : kinds) {
    ImageRuns runs;
    SCOPED_TRACE(words[0]);
    // Ten classes: 2.3 by chance. Of training: the images are random.
    const auto some = with(with(common, words), {"train.epochs=12"});
    const std::string loss = runs.train(3, "run", some).losses.back();
    EXPECT_LT(std::stod(loss.substr(loss.find(':') + 1)), 2.1) << loss;
    const auto more = with(some, {"train.epochs=13"});
    EXPECT_EQ(runs.train(2, "run", more).result.steps, 91);
  }
}

TEST_F(Asynchronous, IsRefusedInOneLineWithWhatNeedsMeetings) {
  Seen seen;
  const auto refused = [&](
                           const strategy::Strategy& strategy, const std::string& why,
                           const std::function<void(Options&)>& change = [](Options&) {}) {
    Options with = options(strategy, "no");
    change(with);
    expect_refused([&] { train(2, with, seen); }, Errc::kBadConfig, why);
  };
  refused({.name = "ad_psgd", .adapt_steps = 3},
          "strategy.adapt_steps: ad_psgd has no common loss");
  refused({.name = "downpour"}, "train.balance = \"speed\" has nothing to do",
          [](Options& with) { with.balance_by_speed = true; });
  refused({.name = "downpour", .delay_compensation = 1}, "set optimizer.name = \"sgd\"",
          [](Options& with) {
            with.plan.optimizer = engine::optimizer_spec(torch::optim::AdamWOptions(0.01), {});
          });
  refused({.name = "sync", .backup = 2}, "strategy.backup = 2");
  refused({.name = "sync", .backup = 1}, "strategy.backup = 1 must be from 0 to one less",
          [](Options& with) { with.mesh = "fsdp=2"; });
  EXPECT_THAT(seen.counts(), Each(0));
}

TEST(SlowRank, TakesItsFactorFromTheEnvironment) {
  const auto set = [](const char* value) { setenv("WEFT_SLOW_RANK", value, 1); };
  set("3:4");
  EXPECT_EQ(internal::slowdown_of(3), 4);
  EXPECT_EQ(internal::slowdown_of(2), 1);
  for (const char* bad : {"3", "3:0.5", "x:4", "3:4s", "-1:4", "3:nan"}) {
    set(bad);
    expect_refused([] { internal::slowdown_of(0); }, Errc::kBadConfig,
                   "expected RANK:FACTOR with a factor from 1 to 1000");
  }
  unsetenv("WEFT_SLOW_RANK");
  EXPECT_EQ(internal::slowdown_of(3), 1);
  const auto start = std::chrono::steady_clock::now();
  {
    const internal::SlowRank slow(4);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
}

}  // namespace asynchronous_test
}  // namespace weft::train
