#include "weft/train/text_trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/log.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/comm/replicate.h"
#include "weft/train/generate.h"
#include "weft/train/recipe.h"

namespace weft::train {
namespace {

using testing::HasSubstr;

// Two words in turn: a model that has learned anything knows what follows.
std::string verses() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += i % 2 == 0 ? "warp " : "weft ";
  return text;
}

class TextRuns {
 public:
  TextRuns() {
    set_log_level(LogLevel::kError);
    write_file_atomic(folder_ / "verses.txt", verses());
  }

  Config config(const std::vector<std::string>& assignments) const {
    Config config(recipe_schema());
    for (const char* common : {"data.name=text", "model.name=gpt", "model.layers=1", "model.width=16", "model.heads=2", "model.sequence=16",
                               "train.batch=8", "train.epochs=2", "optimizer.name=adamw", "optimizer.lr=0.01", "schedule.name=constant"})
      config.set(common);
    config.set("data.file=\"" + (folder_ / "verses.txt") + "\"");
    config.set("run.dir=\"" + folder_.path() + "\"");
    for (const auto& assignment : assignments) config.set(assignment);
    return config;
  }

  // A name twice goes on with the run.
  TrainResult train(int world, const std::string& name, std::vector<std::string> assignments) const {
    assignments.push_back("run.name=" + name);
    const Config config = this->config(assignments);
    const bool resume = std::filesystem::exists(path(name));
    TrainResult result;
    replicate(world, [&](const Group& group) {
      TrainerOptions options;
      options.resume = resume;
      TextTrainer trainer(config, group, options);
      const auto mine = trainer.run();
      if (group.rank() == 0) result = mine;
    });
    return result;
  }

  checkpoint::TensorMap weights(const std::string& name) const {
    return checkpoint::load(*checkpoint::latest(path(name) + "/ckpt").folder).parts.at("model");
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  TempDir folder_;
};

void expect_close(const checkpoint::TensorMap& a, const checkpoint::TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::allclose(tensor, b.at(name), 1e-3, 1e-4)) << name;
}

TEST(TextTrainer, LearnsTheSameHoweverBatchAndLayersAreSplit) {
  const TextRuns runs;
  // Not Adam, which makes steps of full size of gradients that are zero but for rounding (the bias of keys).
  const std::vector<std::string> words = {"train.epochs=8", "optimizer.name=sgd", "optimizer.lr=0.1"};
  const auto one = runs.train(1, "one", words);
  EXPECT_GT(one.accuracy, 0.5);
  EXPECT_EQ(one.epochs, 8);
  for (const auto& [name, world, tp] : {std::tuple{"dp2", 2, 1}, {"tp2", 2, 2}, {"dp2tp2", 4, 2}}) {
    auto more = words;
    more.push_back("parallel.tp=" + std::to_string(tp));
    const auto split = runs.train(world, name, more);
    EXPECT_NEAR(split.loss, one.loss, 1e-3) << name;
    EXPECT_NEAR(split.accuracy, one.accuracy, 0.02) << name;
    expect_close(runs.weights(name), runs.weights("one"));
  }
}

TEST(TextTrainer, RecomputesToTheSameBitsDropoutIncluded) {
  const TextRuns runs;
  const std::vector<std::string> words = {"model.dropout=0.1", "model.layers=2", "train.max_steps=5", "parallel.tp=2"};
  auto again = words;
  again.push_back("train.recompute=full");
  runs.train(2, "kept", words);
  runs.train(2, "again", again);
  const auto kept = runs.weights("kept"), computed = runs.weights("again");
  for (const auto& [name, tensor] : kept) EXPECT_TRUE(at::equal(tensor, computed.at(name))) << name;
}

TEST(TextTrainer, GoesOnFromACheckpointUnderAnotherSplit) {
  const TextRuns runs;
  const std::vector<std::string> words = {"data.tokenizer=\"bpe:260\"", "model.family=llama"};
  runs.train(1, "whole", words);
  auto half = words;
  half.push_back("train.max_steps=3");
  half.push_back("parallel.tp=2");
  EXPECT_EQ(runs.train(2, "cut", half).steps, 3);
  runs.train(1, "cut", words);
  expect_close(runs.weights("cut"), runs.weights("whole"));
}

TEST(TextTrainer, ItsModelsWriteWhatTheyHaveLearned) {
  const TextRuns runs;
  runs.train(1, "run", {"train.epochs=6"});
  const auto write = [&](const GenerateOptions& options) {
    std::string text;
    train::generate(runs.path("run"), options, [&](std::string_view piece) { text += piece; });
    return text;
  };
  EXPECT_THAT(write({.prompt = "warp weft ", .tokens = 20, .temperature = 0}), testing::StartsWith("warp weft warp weft"));
  const std::string drawn = write({.prompt = "warp ", .tokens = 12, .temperature = 2, .top_k = 5, .seed = 3});
  EXPECT_EQ(drawn, write({.prompt = "warp ", .tokens = 12, .temperature = 2, .top_k = 5, .seed = 3}));
  EXPECT_THROW(write({.tokens = -1}), Error);
  EXPECT_THROW(train::generate(runs.path("none"), {}, [](std::string_view) {}), Error);
}

std::string refused(const TextRuns& runs, int world, std::vector<std::string> assignments) {
  try {
    runs.train(world, "refused", std::move(assignments));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kBadConfig) << error.what();
    EXPECT_FALSE(std::filesystem::exists(runs.path("refused"))) << error.what();
    return error.message();
  }
  return "accepted";
}

TEST(TextTrainer, RefusesWhatItCannotDoAndLeavesNoRun) {
  const TextRuns runs;
  EXPECT_THAT(refused(runs, 2, {"parallel.tp=3"}), HasSubstr("nearest: dp=1,tp=2"));
  EXPECT_THAT(refused(runs, 1, {"data.file=\"/nowhere\""}), HasSubstr("/nowhere"));
  EXPECT_THAT(refused(runs, 1, {"data.tokenizer=\"bpe:9\""}), HasSubstr("bpe:N"));
  EXPECT_THAT(refused(runs, 2, {"parallel.tp=2", "optimizer.max_grad_norm=1"}), HasSubstr("optimizer.max_grad_norm"));
  EXPECT_THAT(refused(runs, 1, {"train.reproducible=true"}), HasSubstr("train.reproducible"));
}

}  // namespace
}  // namespace weft::train
