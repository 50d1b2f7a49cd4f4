// Workers that take batches when they are ready: each sample once, nobody waits for a slow one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "weft/base/testing/decimal_comma.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/observe/report/metrics_file.h"
#include "weft/train/internal/slow_rank.h"
#include "weft/train/testing/asynchronous_runs.h"
#include "weft/train/testing/image_runs.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace asynchronous_test {

using internal::ImageRuns;
using internal::with;
using testing::Each;

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
    auto series = observe::read_metrics(runs.path("run") + "/metrics.jsonl");
    EXPECT_TRUE(std::ranges::is_sorted(series["dropped_steps"], {}, &observe::MetricsPoint::value));
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
  {
    const DecimalComma locale;
    set("3:2.5");
    EXPECT_EQ(internal::slowdown_of(3), 2.5);
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
