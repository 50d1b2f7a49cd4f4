// A step of the beginning that fails on one rank ends it on the others at once. All ranks keep
// their group, as those of a program that catches the error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <utility>
#include <vector>

#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"
#include "weft/parallel/compose/modules.h"
#include "weft/train/trainer.h"

namespace weft::train {
namespace one_rank_fails_test {

using testing::HasSubstr;
using testing::StartsWith;

Task some_task() {
  Task task(parallel::blocks_of(torch::nn::Sequential(torch::nn::Linear(2, 1))),
            [](const at::Tensor& output, const at::Tensor& target) {
              return (output - target).square().mean();
            });
  task.train = samples(32, [](const std::vector<std::int64_t>& indices) {
    const auto count = static_cast<std::int64_t>(indices.size());
    return std::pair(at::ones({count, 2}), at::ones({count, 1}));
  });
  return task;
}

Options options_in(const std::string& folder) {
  Options options;
  options.epochs = 1;
  options.batch = 8;
  options.dir = folder;
  options.name = "run";
  options.mesh = "dp=2";
  options.prefetch = 0;
  return options;
}

TEST(OneRankFails, TheRunFolderCannotBeMade) {
  set_log_level(LogLevel::kError);
  const TempDir folder;
  write_file_atomic(folder / "file", "in the way");
  replicate(2, [&](const Group& group) {
    try {
      Trainer(some_task(), options_in(folder / "file"), group);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      if (group.rank() == 0) {
        EXPECT_NE(error.code(), Errc::kAborted) << error.what();
      } else {
        EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
        EXPECT_THAT(error.message(), StartsWith("rank 0 failed: "));
      }
      EXPECT_THAT(error.message(), HasSubstr("file"));
    }
    group.barrier();  // the group goes on
  });
}

// As where the hosts' data folders differ.
TEST(OneRankFails, RanksWithOtherNumbersOfSamplesAreRefused) {
  set_log_level(LogLevel::kError);
  const TempDir folder;
  replicate(2, [&](const Group& group) {
    Task task = some_task();
    if (group.rank() == 1) task.train.size = 31;
    expect_refused([&] { Trainer(std::move(task), options_in(folder / "runs"), group); },
                   Errc::kInvalidArgument,
                   "rank 0 has 32 training samples, 0 test samples and the metrics, rank 1 has 31");
    group.barrier();  // the group goes on
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "runs/run"));
}

// The process lives on: only the abort tells the others.
TEST(OneRankFails, TheDataThrowInTheMiddleOfTheRun) {
  set_log_level(LogLevel::kError);
  const TempDir folder;
  replicate(2, [&](const Group& group) {
    Task task = some_task();
    task.train = samples(32, [&, taken = 0](const std::vector<std::int64_t>& indices) mutable {
      if (group.rank() == 1 && ++taken == 3) throw std::runtime_error("a bad sample");
      const auto count = static_cast<std::int64_t>(indices.size());
      return std::pair(at::ones({count, 2}), at::ones({count, 1}));
    });
    Options options = options_in(folder / "runs");
    options.epochs = 4;
    Trainer trainer(std::move(task), options, group);
    const auto began = std::chrono::steady_clock::now();
    try {
      trainer.run();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(group.rank(), 0) << error.what();
      EXPECT_EQ(error.code(), Errc::kAborted) << error.what();
      EXPECT_THAT(error.message(), HasSubstr("a bad sample"));
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(group.rank(), 1);
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  });
}

}  // namespace one_rank_fails_test
}  // namespace weft::train
