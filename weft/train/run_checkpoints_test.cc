// When checkpoints are due, and what is complete before the state is copied to memory.
#include "weft/train/internal/run_checkpoints.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <filesystem>
#include <utility>

#include "weft/base/file.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/internal/best.h"
#include "weft/train/internal/learner.h"

namespace weft::train::internal {
namespace run_checkpoints_test {

namespace fs = std::filesystem;
using std::chrono::seconds;

void set_age(const fs::path& path, seconds age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

// A run that saves a checkpoint each minute.
class MinutesDue : public testing::Test {
 protected:
  MinutesDue() {
    fs::create_directories(run_ / "ckpt");
    write_file_atomic(run_ / "config.toml", "");
  }
  void add_checkpoint(const std::string& name, seconds age) {
    fs::create_directories(run_ / ("ckpt/" + name));
    set_age(run_ / ("ckpt/" + name), age);
  }
  // Whether rank 0 asks for a checkpoint as soon as it goes on from a copy.
  bool are_due_after_a_recovery() {
    bool due = false;
    replicate(1, [&](const Group& group) {
      RunCheckpoints checkpoints(options_, group);
      checkpoints.start(run_ / "ckpt", 9, /*is_saved=*/false, /*copies=*/false);
      EXPECT_FALSE(checkpoints.minutes_due());
      checkpoints.keep_interval();
      due = checkpoints.minutes_due();
    });
    return due;
  }

  const Options options_{.checkpoint_minutes = 1};
  const TempDir run_;
};

TEST_F(MinutesDue, CountFromTheNewestCheckpointAfterARecovery) {
  add_checkpoint("step-00000001", seconds(90));
  EXPECT_TRUE(are_due_after_a_recovery());
  add_checkpoint("step-00000002", seconds(10));
  EXPECT_FALSE(are_due_after_a_recovery());
}

TEST_F(MinutesDue, CountFromTheStartOfTheRunWithoutACheckpoint) {
  EXPECT_FALSE(are_due_after_a_recovery());
  set_age(run_ / "config.toml", seconds(90));
  EXPECT_TRUE(are_due_after_a_recovery());
}

TEST_F(MinutesDue, BeginAnewIfTheClockHasJumpedBack) {
  add_checkpoint("step-00000001", -std::chrono::hours(9));
  EXPECT_FALSE(are_due_after_a_recovery());
}

// A recovery from the copy takes the best step for saved.
TEST(RunCheckpoints, CompleteTheBestOneBeforeTheStateIsCopied) {
  const TempDir run;
  replicate(1, [&](const Group& group) {
    Options options;
    options.batch = 1;
    options.prefetch = 0;
    options.mesh = "dp=1";
    Task task(parallel::blocks_of(torch::nn::Linear(1, 1)),
              [](const at::Tensor& y, const at::Tensor&) { return y.mean(); });
    task.train = samples(at::zeros({4, 1}), at::zeros({4, 1}));
    const Mesh mesh(group, options.mesh.axes());
    Learner learner(std::move(task), options, mesh, nullptr, nullptr);
    RunCheckpoints checkpoints(options, group);
    checkpoints.start(run / "ckpt", 0, /*is_saved=*/false, /*copies=*/true);
    const Progressed done{.step = 1, .batch = learner.division(), .samples = learner.samples()};
    checkpoints.save(learner, done, {.step = 1, .metric = "loss", .value = 0.5});
    checkpoints.copy(learner, done);
    EXPECT_EQ(named_best(run.path()), 1);
    checkpoints.finish();
  });
}

}  // namespace run_checkpoints_test
}  // namespace weft::train::internal
