// RunSaver keeps working after a checkpoint could not be written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/internal/run_state.h"

namespace weft::train::internal {
namespace {

namespace fs = std::filesystem;

parallel::ParallelModel model_over(const Group& group) {
  parallel::BlockModel model = parallel::blocks_of(
      torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)));
  model.loss = [](const parallel::Tensors& y, const parallel::Tensors&, const parallel::Contexts&) {
    return y[0].mean();
  };
  return parallel::parallelize(model, {}, Mesh(group, {{"fsdp", 0}}));
}

Progressed at_step(std::int64_t step) {
  return {.step = step,
          .sampler = {0, step},
          .epoch_loss = 0.5,
          .seed = 3,
          .batch = {.global = 8},
          .samples = 4096};
}

void put_in_the_way(const Group& group, const std::string& folder) {
  if (group.rank() == 0) {
    fs::rename(folder, folder + ".aside");
    write_file_atomic(folder, "in the way");
  }
  group.barrier();
}

void take_away(const Group& group, const std::string& folder) {
  if (group.rank() == 0) {
    fs::remove(folder);
    fs::rename(folder + ".aside", folder);
  }
  group.barrier();
}

TEST(RunSaver, LeavesOlderCheckpointsAloneAndSavesAgainAfterAFailure) {
  for (const bool async : {true, false}) {
    const TempDir dir;
    const std::string folder = dir / "ckpt";
    replicate(2, [&](const Group& group) {
      auto model = model_over(group);
      RunSaver saver(group, model.shards(),
                     {.folder = group.rank() == 0 ? folder : "", .keep = 0, .async = async});
      saver.save(shards_of(model.shards(), at_step(1)));
      saver.finish();
      put_in_the_way(group, folder);
      saver.save(shards_of(model.shards(), at_step(2)));
      saver.save(shards_of(model.shards(), at_step(3)));  // logs that step 2 has failed
      expect_refused([&] { saver.finish(); }, Errc::kInvalidArgument,
                     "the checkpoint of step 3 is not saved: rank 0: ");
      take_away(group, folder);
      saver.save(shards_of(model.shards(), at_step(4)));
      saver.finish();
      saver.finish();  // no save is left to wait for

      const auto saved = load_latest(group, folder);
      ASSERT_TRUE(saved);
      const Progressed progressed = saved->progress(3, 8, 4096);
      EXPECT_EQ(progressed.step, 4);
      EXPECT_EQ(progressed.sampler.position, 4);
      EXPECT_EQ(progressed.epoch_loss, 0.5);
      saved->restore(model, group);
    });
    EXPECT_TRUE(fs::exists(folder + "/step-00000001"));
    EXPECT_FALSE(fs::exists(folder + "/step-00000002"));
  }
}

// The best evaluation's own checkpoint was not saved.
TEST(RunSaver, NeverDeletesTheCheckpointThatBestJsonNames) {
  const TempDir dir;
  const std::string folder = dir / "ckpt";
  replicate(2, [&](const Group& group) {
    auto model = model_over(group);
    const auto saver_with = [&](std::int64_t best) {
      return RunSaver(group, model.shards(),
                      {.folder = group.rank() == 0 ? folder : "",
                       .keep = 1,
                       .async = false,
                       .best = {.step = best, .metric = "loss", .value = 1}});
    };
    RunSaver first = saver_with(-1);
    first.save(shards_of(model.shards(), at_step(1)), {.step = 1, .metric = "loss", .value = 1});
    first.finish();
    RunSaver resumed = saver_with(2);
    for (const std::int64_t step : {3, 4, 5})
      resumed.save(shards_of(model.shards(), at_step(step)));
    resumed.finish();
  });
  EXPECT_EQ(named_best(dir.path()), 1);
  EXPECT_TRUE(fs::exists(folder + "/step-00000001"));
  EXPECT_FALSE(fs::exists(folder + "/step-00000004"));
}

TEST(RunSaver, DoesNotCountDamagedCheckpointsAmongThoseToKeep) {
  const TempDir dir;
  const std::string folder = dir / "ckpt";
  replicate(2, [&](const Group& group) {
    auto model = model_over(group);
    const auto saver_with = [&](std::vector<std::int64_t> damaged) {
      return RunSaver(group, model.shards(),
                      {.folder = group.rank() == 0 ? folder : "",
                       .keep = 2,
                       .async = false,
                       .damaged = std::move(damaged)});
    };
    RunSaver first = saver_with({});
    for (const std::int64_t step : {20, 30}) first.save(shards_of(model.shards(), at_step(step)));
    first.finish();
    if (group.rank() == 0) fs::remove(folder + "/step-00000030/manifest");
    group.barrier();
    const auto saved = load_latest(group, folder);
    ASSERT_TRUE(saved);
    EXPECT_EQ(saved->damaged(), std::vector<std::int64_t>{30});
    RunSaver resumed = saver_with(saved->damaged());
    resumed.save(shards_of(model.shards(), at_step(21)));
    resumed.finish();
    if (group.rank() == 0) {
      EXPECT_TRUE(fs::exists(folder + "/step-00000020"));
    }
    group.barrier();
    for (const std::int64_t step : {30, 31})  // step 30 is whole again
      resumed.save(shards_of(model.shards(), at_step(step)));
    resumed.finish();
  });
  EXPECT_TRUE(fs::exists(folder + "/step-00000030"));
  EXPECT_FALSE(fs::exists(folder + "/step-00000021"));
}

TEST(Saved, HasEachValueOfTheRunUnderItsName) {
  const Progressed state{.step = 1,
                         .sampler = {2, 3},
                         .epoch_loss = 0.5,
                         .epoch_samples = 4,
                         .seed = 5,
                         .batch = {6, 7, 8, 9, 10, 11, 12},
                         .asked_batch = "train.batch=6",
                         .noise = {0.25, 1},
                         .passes = 13,
                         .best = {14, 2, 15, "accuracy", "max"},
                         .samples = 16,
                         .evaluated_step = 17,
                         .left_out = {.skipped = 18, .dropped = 19}};
  const auto values = shards_of({}, state).state;
  EXPECT_EQ(values, (checkpoint::StringMap{{"step", "1"},
                                           {"epoch", "2"},
                                           {"position", "3"},
                                           {"epoch_loss", "1p-1"},
                                           {"epoch_samples", "1p+2"},
                                           {"seed", "5"},
                                           {"batch", "6"},
                                           {"replicas", "7"},
                                           {"pass", "8"},
                                           {"reference", "9"},
                                           {"first_batch", "10"},
                                           {"first_replicas", "11"},
                                           {"first_ranks", "12"},
                                           {"asked_batch", "train.batch=6"},
                                           {"noise", "1p-2"},
                                           {"signal", "1p+0"},
                                           {"passes", "13"},
                                           {"best_step", "14"},
                                           {"best_value", "1p+1"},
                                           {"best_since", "15"},
                                           {"best_metric", "accuracy"},
                                           {"best_is", "max"},
                                           {"samples", "16"},
                                           {"evaluated_step", "17"},
                                           {"skipped_steps", "18"},
                                           {"dropped_steps", "19"}}));
  const TempDir dir;
  replicate(1, [&](const Group& group) {
    auto model = model_over(group);
    RunSaver saver(group, model.shards(), {.folder = dir / "ckpt"});
    saver.save(shards_of(model.shards(), state));
    saver.finish();
    const auto saved = load_latest(group, dir / "ckpt");
    EXPECT_EQ(shards_of({}, saved->progress(5, 6, 16)).state, values);
    EXPECT_EQ(saved->batch(), state.batch);
    EXPECT_EQ(saved->asked_batch(), state.asked_batch);
  });
}

TEST(Saved, ReadsCheckpointsOfOlderVersions) {
  const TempDir dir;
  replicate(1, [&](const Group& group) {
    auto model = model_over(group);
    RunSaver saver(group, model.shards(), {.folder = dir / "ckpt"});
    auto state = at_step(1);
    state.best = {1, 0.25, 2, "accuracy", "max"};
    state.samples = 4096;
    saver.save(shards_of(model.shards(), state));
    saver.finish();
    EXPECT_EQ(load_latest(group, dir / "ckpt")->progress(3, 8, 4096).best.metric, "accuracy");
    auto older = shards_of(model.shards(), state);
    older.step = 2;
    for (const char* name :
         {"best_metric", "best_is", "samples", "epoch_samples", "evaluated_step", "skipped_steps"})
      older.state.erase(name);
    saver.save(older);
    saver.finish();
    const Progressed read = load_latest(group, dir / "ckpt")->progress(3, 8, 5000);
    EXPECT_EQ(read.epoch_samples, 1);
    EXPECT_EQ(read.evaluated_step, 1);
    EXPECT_EQ(read.samples, 5000);
    EXPECT_EQ(read.left_out.skipped, 0);
    Best best({.patience = 3, .best_metric = "loss"});
    EXPECT_TRUE(best.restore(read.best));
    EXPECT_EQ(best.mark().value, 0.25);
    EXPECT_EQ(best.state().since, 2);
    EXPECT_EQ(best.state().is, "min");
  });
}

}  // namespace
}  // namespace weft::train::internal
