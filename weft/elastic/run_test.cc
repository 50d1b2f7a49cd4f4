// Tests of run() with ranks as threads. tests/faults/elastic_test.py has those with processes.
#include "weft/elastic/run.h"

#include <gtest/gtest.h>

#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"

namespace weft::elastic {
namespace {

TEST(ElasticRun, StopsAllRanksAfterTheSameStepAndSavesOnAllOfThem) {
  constexpr int kRanks = 3;
  std::vector<std::int64_t> stopped_at(kRanks, -1), saved_at(kRanks, -1);
  replicate(kRanks, [&](const Group& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    std::int64_t step = 0;
    State state;
    state.add("step", step);
    RunOptions options;
    options.world = world;
    options.should_stop = [&] { return world.rank() == 1 && step >= 5; };
    options.save = [&](const Group&) {
      saved_at[rank] = step;
      return std::string();
    };
    const RunResult result = run(
        state, [&](const Group&) { return ++step < 1000; }, options);
    EXPECT_TRUE(result.stopped);
    EXPECT_EQ(result.steps, step);
    stopped_at[rank] = step;
  });
  EXPECT_GE(stopped_at[0], 5);
  EXPECT_LE(stopped_at[0], 5 + 10);  // as RunOptions::should_stop promises
  EXPECT_EQ(stopped_at, std::vector<std::int64_t>(kRanks, stopped_at[0]));
  EXPECT_EQ(saved_at, stopped_at);
}

TEST(ElasticRun, DoesNotSaveWhenTheLastStepWasDone) {
  replicate(2, [](const Group& world) {
    std::int64_t step = 0;
    State state;
    state.add("step", step);
    RunOptions options;
    options.world = world;
    options.should_stop = [&] { return step == 3; };
    options.save = [](const Group&) -> std::string {
      ADD_FAILURE() << "saved";
      return "";
    };
    EXPECT_FALSE(run(
                     state, [&](const Group&) { return ++step < 3; }, options)
                     .stopped);
  });
}

TEST(ElasticRun, ContinuesFromACheckpointBeforeTheFirstStep) {
  replicate(2, [](const Group& world) {
    std::int64_t step = 0;
    State state;
    state.add("step", step);
    RunOptions options;
    options.world = world;
    options.resume = true;
    options.reload = [&](const Group&) { return step = 7; };
    const RunResult result = run(
        state, [&](const Group&) { return ++step < 9; }, options);
    EXPECT_EQ(step, 9);
    EXPECT_EQ(result.steps, 9);
  });
}

TEST(ElasticRun, RefusesOptionsThatNeedAnotherOne) {
  std::int64_t step = 0;
  State state;
  state.add("step", step);
  const auto nothing = [](const Group&) { return false; };
  expect_refused([&] { run(state, nothing, {.resume = true}); }, Errc::kInvalidArgument,
                 "set reload");
  expect_refused([&] { run(state, nothing, {.save = [](const Group&) { return std::string(); }}); },
                 Errc::kInvalidArgument, "set should_stop, too");
}

}  // namespace
}  // namespace weft::elastic
