// Workers on several hosts, whose center is on parameter servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/store/testing/store_processes.h"
#include "weft/strategy/server/server_center.h"
#include "weft/train/testing/asynchronous_runs.h"
#include "weft/train/testing/image_runs.h"

namespace weft::train {
namespace asynchronous_test {

using testing::Each;

class AsynchronousOnServers : public Asynchronous {};

// The center is on servers, and the counter of batches in the store of the job.
TEST_F(AsynchronousOnServers, OnSeveralHostsASlowWorkerTakesFewerBatchesAndEachSampleIsUsedOnce) {
  const store::StoreProcess process({.program = WEFT_STORE_PROGRAM});
  ::setenv(store::kStoreVariable, process.socket().c_str(), 1);
  over_tcp_ = true;
  {
    Seen seen;
    expect_refused([&] { train(2, options({.name = "downpour"}, "none"), seen); }, Errc::kBadConfig,
                   "needs the parameter server, which this program does not have; build weft with "
                   "-DWEFT_PS=ON");
  }
  const std::vector<strategy::Strategy> strategies = {{.name = "downpour"},
                                                      {.name = "easgd_async", .period = 2}};
  for (const auto& strategy : strategies) {
    SCOPED_TRACE(strategy.name);
    Seen seen;
    Options cut = options(strategy, strategy.name);
    cut.components.servers = &strategy::server_component();
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

// In shared memory, the center is in the memory of the host. Over TCP, it is on a parameter server.
TEST(StrategiesOnServers, DownpourWithStaleness0IsDataParallelismAndResumes) {
  const std::vector<std::string> usual = {"model.name=mlp", "model.hidden=[32]", "train.epochs=2",
                                          "optimizer.lr=0.05", "optimizer.momentum=0"};
  const auto words = internal::with(usual, {"strategy.name=downpour", "strategy.staleness=0"});
  for (const bool over_tcp : {false, true}) {
    internal::ImageRuns runs;
    const auto sync = runs.train(4, "sync", usual);
    if (over_tcp) {
      runs.tcp = internal::ImageRuns::Sums::kAsTheyCome;
      runs.components.servers = &strategy::server_component();
    }
    const auto whole = runs.train(4, "whole", words);
    runs.train(4, "cut", internal::with(words, {"train.max_steps=8"}));
    for (const auto& run : {whole, runs.train(4, "cut", words)}) {
      for (const auto& [name, tensor] : sync.tensors)
        EXPECT_TRUE(at::allclose(tensor, run.tensors.at(name), 1e-4, 1e-5)) << name;
    }
  }
}

}  // namespace asynchronous_test
}  // namespace weft::train
