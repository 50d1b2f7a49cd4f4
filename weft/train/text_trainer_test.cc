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
#include "weft/train/export.h"
#include "weft/train/generate.h"
#include "weft/train/internal/text_model.h"
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

std::string text_of(const std::string& folder, const GenerateOptions& options, const parallel::TensorParallel& tp = {}) {
  std::string text;
  train::generate(
      folder, options, [&](std::string_view piece) { text += piece; }, tp);
  return text;
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

TEST(TextTrainer, LearnsTheSameInStagesAndShards) {
  const TextRuns runs;
  const std::vector<std::string> words = {"train.epochs=2", "optimizer.name=sgd", "optimizer.lr=0.1", "model.layers=2",
                                          "optimizer.max_grad_norm=1"};
  const auto one = runs.train(1, "one", words);
  for (const auto& [name, world, forms] :
       {std::tuple<const char*, int, std::vector<std::string>>{"pp2", 2, {"parallel.pp=2"}},
        {"fsdp2", 2, {"parallel.fsdp=2"}},
        {"zero1", 2, {"parallel.fsdp=2", "parallel.zero_stage=1", "parallel.micro_batches=2"}},
        {"tp2", 2, {"parallel.tp=2"}},
        {"dp2pp2", 4, {"parallel.pp=2", "parallel.schedule=gpipe", "parallel.micro_batches=2", "parallel.cuts=[1]"}}}) {
    auto more = words;
    more.insert(more.end(), forms.begin(), forms.end());
    const auto split = runs.train(world, name, more);
    EXPECT_NEAR(split.loss, one.loss, 1e-3) << name;
    EXPECT_NEAR(split.accuracy, one.accuracy, 0.02) << name;
    expect_close(runs.weights(name), runs.weights("one"));
  }
}

TEST(TextTrainer, LearnsTheSameWithExpertsOverRanks) {
  const TextRuns runs;
  const std::vector<std::string> words = {"model.experts=4", "optimizer.name=sgd", "optimizer.lr=0.1"};
  const auto one = runs.train(1, "one", words);
  for (const std::string form : {"dp", "ep"}) {
    auto more = words;
    more.push_back("parallel." + form + "=2");
    EXPECT_NEAR(runs.train(2, form, more).loss, one.loss, 1e-3);
    expect_close(runs.weights(form), runs.weights("one"));
  }
  text_of(runs.path("ep"), {.tokens = 3, .seed = 1});
}

TEST(TextTrainer, TrainsInFloat16WithAScaledLoss) {
  const TextRuns runs;
  const std::vector<std::string> words = {"train.epochs=4", "optimizer.name=sgd", "optimizer.lr=0.1", "train.precision=f16"};
  const auto whole = runs.train(1, "whole", words);
  EXPECT_LT(whole.loss, 3);
  // The scale goes on where it was.
  auto half = words;
  half.push_back("train.max_steps=5");
  runs.train(1, "cut", half);
  EXPECT_EQ(checkpoint::load(*checkpoint::latest(runs.path("cut") + "/ckpt").folder).parts.at("scaling").count("loss_scale"), 1);
  runs.train(1, "cut", words);
  expect_close(runs.weights("cut"), runs.weights("whole"));
}

TEST(TextTrainer, RecomputesToTheSameBitsDropoutIncluded) {
  const TextRuns runs;
  const std::vector<std::string> words = {"model.dropout=0.1", "model.layers=2", "train.max_steps=5", "parallel.tp=2"};
  runs.train(2, "kept", words);
  const auto kept = runs.weights("kept");
  for (const std::string kind : {"full", "selective"}) {
    auto again = words;
    again.push_back("train.recompute=" + kind);
    runs.train(2, kind, again);
    const auto computed = runs.weights(kind);
    for (const auto& [name, tensor] : kept) EXPECT_TRUE(at::equal(tensor, computed.at(name))) << kind << ": " << name;
  }
}

TEST(TextTrainer, GoesOnFromACheckpointUnderAnotherSplit) {
  const TextRuns runs;
  const std::vector<std::string> words = {"data.tokenizer=\"bpe:260\"", "model.family=llama"};
  runs.train(1, "whole", words);
  auto half = words;
  half.push_back("train.max_steps=3");
  half.push_back("parallel.tp=2");
  EXPECT_EQ(runs.train(2, "cut", half).steps, 3);
  // From split layers to stages, from these to shards, from these to one process.
  for (const auto& [form, steps] : {std::pair{"parallel.pp=2", 6}, {"parallel.fsdp=2", 9}}) {
    half = words;
    half.push_back("train.max_steps=" + std::to_string(steps));
    half.emplace_back(form);
    EXPECT_EQ(runs.train(2, "cut", half).steps, steps);
  }
  runs.train(1, "cut", words);
  expect_close(runs.weights("cut"), runs.weights("whole"));
}

TEST(TextTrainer, ItsModelsWriteWhatTheyHaveLearned) {
  const TextRuns runs;
  runs.train(1, "run", {"train.epochs=6"});
  const std::string run = runs.path("run");
  // 30 tokens behind 10 are more than the model sees at a time.
  const GenerateOptions likeliest{.prompt = "warp weft ", .tokens = 30, .temperature = 0};
  const std::string text = text_of(run, likeliest);
  EXPECT_EQ(text, "warp weft warp weft warp weft ");
  const GenerateOptions drawing{.prompt = "warp ", .tokens = 12, .temperature = 2, .top_k = 5, .seed = 3};
  EXPECT_EQ(text_of(run, drawing), text_of(run, drawing));
  // Over two ranks, each with its heads, the same.
  const GenerateOptions few{.prompt = "warp weft warp", .tokens = 4, .temperature = 0.5, .top_p = 0.9};
  const std::string alone = text_of(run, few);
  replicate(2, [&](const Group& group) { EXPECT_EQ(text_of(run, few, parallel::TensorParallel(group, 1)), alone); });
  GenerateOptions stopping = likeliest;
  stopping.stop = {"weft warp", "arp we"};  // the second comes first
  EXPECT_EQ(text_of(run, stopping), "w");
  stopping.stop = {"ft wool"};  // begins, and does not come
  EXPECT_EQ(text_of(run, stopping), text);
  EXPECT_THROW(text_of(run, {.tokens = -1}), Error);
  EXPECT_THROW(text_of(run, {.top_p = 0}), Error);
  EXPECT_THROW(text_of(run, {.stop = {""}}), Error);
  EXPECT_THROW(text_of(runs.path("none"), {}), Error);
}

TEST(TextTrainer, ItsModelsAreWrittenForTransformersAndReadBack) {
  const TextRuns runs;
  for (const std::string family : {"gpt2", "llama"}) {
    runs.train(1, family,
               {"train.epochs=3", "model.family=" + family, family == "gpt2" ? "data.tokenizer=bytes" : "data.tokenizer=\"bpe:260\""});
    const std::string output = runs.path("for_" + family);
    export_huggingface(runs.path(family), output);
    for (const GenerateOptions& options :
         {GenerateOptions{.tokens = 10, .temperature = 0}, GenerateOptions{.prompt = "we", .tokens = 14, .seed = 2}})
      EXPECT_EQ(text_of(output, options), text_of(runs.path(family), options)) << family;
    EXPECT_THROW(export_huggingface(runs.path(family), output), Error) << "written over a model";
  }
}

TEST(Generate, DrawsFromTheLikeliestTokensOnly) {
  const at::Tensor logits = at::log(at::tensor({0.1, 0.5, 0.15, 0.25}, at::kDouble));
  const auto expect = [&](const GenerateOptions& options, std::initializer_list<double> want) {
    const at::Tensor got = distribution(logits, options);
    EXPECT_TRUE(at::allclose(got, at::tensor(at::ArrayRef<double>(want), at::kDouble), 1e-12, 1e-12)) << got;
  };
  expect({.temperature = 1}, {0.1, 0.5, 0.15, 0.25});
  expect({.temperature = 0.5}, {0.01 / 0.345, 0.25 / 0.345, 0.0225 / 0.345, 0.0625 / 0.345});
  expect({.temperature = 1, .top_k = 2}, {0, 2.0 / 3, 0, 1.0 / 3});
  expect({.temperature = 1, .top_k = 9}, {0.1, 0.5, 0.15, 0.25});
  // The fewest that reach it: 0.5 does not reach 0.6, with 0.25 it does.
  expect({.temperature = 1, .top_p = 0.6}, {0, 2.0 / 3, 0, 1.0 / 3});
  expect({.temperature = 1, .top_p = 0.8}, {0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9});
  expect({.temperature = 1, .top_p = 0.01}, {0, 1, 0, 0});
  expect({.temperature = 1, .top_k = 2, .top_p = 0.6}, {0, 1, 0, 0});  // of what top_k left, 2/3 is enough
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

TEST(Generate, TakesTheBeginningFromTheTokenizersTemplate) {
  EXPECT_EQ(
      internal::begin_token(R"({"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}]}})"),
      "<|begin_of_text|>");
  EXPECT_EQ(internal::begin_token(R"({"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}})"), "");
  EXPECT_EQ(internal::begin_token(R"({"post_processor": null})"), "");
  EXPECT_EQ(internal::begin_token(""), "");
}

TEST(TextTrainer, RefusesWhatItCannotDoAndLeavesNoRun) {
  const TextRuns runs;
  EXPECT_THAT(refused(runs, 2, {"parallel.tp=3"}), HasSubstr("nearest: dp=1,tp=2"));
  EXPECT_THAT(refused(runs, 1, {"data.file=\"/nowhere\""}), HasSubstr("/nowhere"));
  EXPECT_THAT(refused(runs, 1, {"data.tokenizer=\"bpe:9\""}), HasSubstr("bpe:N"));
  EXPECT_THAT(refused(runs, 2, {"parallel.pp=2", "parallel.codec=bf16"}), HasSubstr("parallel.codec"));
  EXPECT_THAT(refused(runs, 2, {"parallel.ep=2"}), HasSubstr("of which this model has none"));
  EXPECT_THAT(refused(runs, 2, {"parallel.cp=2", "model.experts=2"}), HasSubstr("nearest that works: dp=2,cp=1"));
  EXPECT_THAT(refused(runs, 2, {"parallel.pp=2", "parallel.micro_batches=16"}), HasSubstr("cannot be 16 micro-batches"));
  EXPECT_THAT(refused(runs, 1, {"train.reproducible=true"}), HasSubstr("train.reproducible"));
}

}  // namespace
}  // namespace weft::train
