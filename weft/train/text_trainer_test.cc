#include "weft/train/trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weft/data/text/train_bpe.h"
#include "weft/train/export.h"
#include "weft/train/internal/recipe_task.h"
#include "weft/train/internal/text_model.h"
#include "weft/train/testing/text_runs.h"

namespace weft::train {
namespace text_trainer_test {

using internal::Assignments;
using internal::expect_close;
using internal::expect_equal;
using internal::expect_learned_alike;
using internal::text_of;
using internal::TextRuns;
using testing::HasSubstr;

TEST(TextTrainer, LearnsTheSameWithDataAndTensorParallelism) {
  const TextRuns runs;
  // SGD, since Adam would take full-size steps for gradients that are only rounding errors (the
  // bias of keys).
  const auto one = expect_learned_alike(
      runs, {"train.epochs=8", "optimizer.name=sgd", "optimizer.lr=0.1"},
      {{"dp2", 2, {}}, {"tp2", 2, {"parallel.tp=2"}}, {"dp2tp2", 4, {"parallel.tp=2"}}});
  EXPECT_GT(one.accuracy, 0.5);
  EXPECT_EQ(one.epochs, 8);
}

TEST(TextTrainer, LearnsTheSameWithPipelineContextAndFsdpParallelism) {
  const TextRuns runs;
  expect_learned_alike(
      runs,
      {"optimizer.name=sgd", "optimizer.lr=0.1", "model.layers=2", "optimizer.max_grad_norm=1"},
      {{"pp2", 2, {"parallel.pp=2"}},
       {"cp2", 2, {"parallel.cp=2"}},
       {"fsdp2", 2, {"parallel.fsdp=2"}},
       {"zero1", 2, {"parallel.fsdp=2", "parallel.zero_stage=1", "parallel.micro_batches=2"}},
       {"tp2", 2, {"parallel.tp=2"}},
       {"dp2pp2",
        4,
        {"parallel.pp=2", "parallel.schedule=gpipe", "parallel.micro_batches=2",
         "parallel.cuts=[1]"}}});
}

TEST(TextTrainer, LearnsTheSameWithExpertParallelism) {
  const TextRuns runs;
  expect_learned_alike(runs, {"model.experts=4", "optimizer.name=sgd", "optimizer.lr=0.1"},
                       {{"dp", 2, {"parallel.dp=2"}},
                        {"ep", 2, {"parallel.ep=2"}},
                        {"cp", 2, {"parallel.cp=2"}},
                        {"cp_ep", 4, {"parallel.cp=2", "parallel.ep=2"}}});
  text_of(runs.path("ep"), {.tokens = 3, .seed = 1});
}

// Samples have different numbers of tokens, so a mean over the tokens of a part of a batch would
// depend on how the batch is divided.
TEST(TextTrainer, LearnsTheSameFromPackedDocumentsUnderEveryPlan) {
  const TextRuns runs;
  const Assignments words = {"data.file=\"" + runs.documents() + "\"",
                             "data.tokenizer=bpe:300",
                             "data.pack_documents=true",
                             "model.layers=2",
                             "optimizer.name=sgd",
                             "optimizer.lr=0.1"};
  expect_learned_alike(runs, words,
                       {{"tp2", 2, {"parallel.tp=2"}},
                        {"pp2", 2, {"parallel.pp=2", "parallel.micro_batches=4"}},
                        {"dp2", 2, {"parallel.micro_batches=2"}},
                        {"fsdp2", 2, {"parallel.fsdp=2"}},
                        {"cp2", 2, {"parallel.cp=2"}}});
  const auto apart = runs.train(1, "again", words);
  auto stream = words;
  stream.emplace_back("data.pack_documents=false");
  EXPECT_NE(runs.train(1, "stream", stream).loss, apart.loss);
}

TEST(TextTrainer, RejectsPackingWithoutAnEndToken) {
  const TextRuns runs;
  const std::string folder = runs.documents(), endless = runs.path("endless.json");
  write_file_atomic(
      endless, data::text::train_bpe({folder + "/9.txt"}, {.vocab_size = 257, .specials = {}}));
  EXPECT_THAT(runs.refused(1, {"data.pack_documents=true", "data.tokenizer=\"" + endless + "\""}),
              HasSubstr("needs a tokenizer with an end token"));
  EXPECT_THAT(
      runs.refused(1, {"data.pack_documents=true", "model.name=lstm", "data.tokenizer=bpe:300"}),
      HasSubstr("data.pack_documents"));
}

// The last value of a key in a run's metrics.jsonl.
double metric(const std::string& run, const std::string& key) {
  const std::string all = read_file(run + "/metrics.jsonl", std::size_t{1} << 20),
                    name = "\"" + key + "\":";
  const auto at = all.rfind(name);
  return at == std::string::npos ? -1 : std::stod(all.substr(at + name.size()));
}

TEST(TextTrainer, ReportsTheLoadOfExpertsAndTheShareOfDroppedTokens) {
  const TextRuns runs;
  // The weights hardly change, so that all runs route tokens alike.
  const std::vector<std::string> words = {"model.experts=4", "model.layers=2", "optimizer.name=sgd",
                                          "optimizer.lr=1e-6"};
  runs.train(1, "one", words);
  const double load = metric(runs.path("one"), "expert_load_max");
  EXPECT_GT(load, 1);
  EXPECT_LE(load, 2) << "at most: two of the four experts get all tokens";
  EXPECT_EQ(metric(runs.path("one"), "expert_dropped"), 0);
  for (const auto& [name, forms] : {std::pair<const char*, std::vector<std::string>>{
                                        "pp_ep", {"parallel.pp=2", "parallel.ep=2"}},
                                    {"cp_dp", {"parallel.cp=2"}}}) {
    auto more = words;
    more.insert(more.end(), forms.begin(), forms.end());
    more.emplace_back("parallel.micro_batches=2");
    runs.train(4, name, more);
    EXPECT_NEAR(metric(runs.path(name), "expert_load_max"), load, 1e-2) << name;
  }
  auto narrow = words;
  narrow.emplace_back("model.experts_capacity=0.5");
  set_log_level(LogLevel::kInfo);
  runs.train(1, "narrow", narrow);
  set_log_level(LogLevel::kError);
  const std::string log = read_file(runs.path("narrow") + "/log.jsonl", std::size_t{1} << 20);
  EXPECT_THAT(
      log.substr(log.find("epoch done")),
      testing::AllOf(HasSubstr("\"expert_load_max\":"), HasSubstr("\"expert_dropped\":0.")));
  const double dropped = metric(runs.path("narrow"), "expert_dropped");
  narrow.emplace_back("parallel.cp=2");
  runs.train(2, "narrow_cp", narrow);
  EXPECT_NEAR(metric(runs.path("narrow_cp"), "expert_dropped"), dropped, 1e-3);
  EXPECT_GE(dropped, 0.5) << "an expert takes at most half of an even share";
  EXPECT_LT(dropped, 1);
  runs.train(1, "dense", {"train.epochs=1"});
  EXPECT_EQ(metric(runs.path("dense"), "expert_dropped"), -1) << "no experts";
}

TEST(TextTrainer, TrainsInFloat16WithLossScaling) {
  const TextRuns runs;
  const std::vector<std::string> words = {"train.epochs=4", "optimizer.name=sgd",
                                          "optimizer.lr=0.1", "train.precision=f16"};
  const auto whole = runs.train(1, "whole", words);
  EXPECT_LT(whole.loss, 3);
  // A resumed run keeps the loss scale.
  auto half = words;
  half.push_back("train.max_steps=5");
  runs.train(1, "cut", half);
  EXPECT_EQ(checkpoint::load(*checkpoint::latest(runs.path("cut") + "/ckpt").folder)
                .parts.at("scaling")
                .count("loss_scale"),
            1);
  runs.train(1, "cut", words);
  expect_close(runs.weights("cut"), runs.weights("whole"));
}

TEST(TextTrainer, HasTheSameBitsWithActivationCheckpointingIncludingDropout) {
  const TextRuns runs;
  const std::vector<std::string> words = {"model.dropout=0.1", "model.layers=2",
                                          "train.max_steps=5", "parallel.tp=2"};
  runs.train(2, "kept", words);
  const auto kept = runs.weights("kept");
  for (const std::string kind : {"full", "selective"}) {
    auto again = words;
    again.push_back("train.recompute=" + kind);
    runs.train(2, kind, again);
    SCOPED_TRACE(kind);
    expect_equal(kept, runs.weights(kind));
  }
}

TEST(TextTrainer, UsesTheSameDropoutMasksAfterResumingFromACheckpoint) {
  for (const std::string model :
       {"model.name=gpt", "model.name=lstm", "parallel.micro_batches=2"}) {
    SCOPED_TRACE(model);
    const TextRuns runs;
    const std::vector<std::string> words = {model, "model.dropout=0.2", "model.layers=2",
                                            "train.max_steps=5"};
    runs.train(1, "whole", words);
    runs.train(1, "cut", {model, "model.dropout=0.2", "model.layers=2", "train.max_steps=2"});
    runs.train(1, "cut", words);
    expect_equal(runs.weights("cut"), runs.weights("whole"));
  }
}

TEST(TextTrainer, HasTheBitsOfOneProcessWithDataFsdpAndPipelineParallelism) {
  const TextRuns runs;
  const std::vector<std::string> words = {"train.reproducible=true", "model.dropout=0.1",
                                          "model.layers=2",          "train.batch=10",
                                          "train.max_steps=7",       "optimizer.max_grad_norm=0.5"};
  const auto one = runs.train(1, "one", words);
  const auto weights = runs.weights("one");
  for (const auto& [name, world, forms] :
       {std::tuple{"dp", 2, std::vector<std::string>{}},
        {"fsdp_dp", 4, {"parallel.fsdp=2"}},
        {"pp", 2, {"parallel.pp=2", "parallel.schedule=zb_h1"}},
        {"pp_fsdp", 4, {"parallel.pp=2", "parallel.fsdp=2", "train.recompute=full"}}}) {
    SCOPED_TRACE(name);
    auto divided = words;
    divided.insert(divided.end(), forms.begin(), forms.end());
    const auto result = runs.train(world, name, divided);
    EXPECT_EQ(metric(runs.path(name), "loss"), metric(runs.path("one"), "loss"));
    EXPECT_EQ(result.steps, one.steps);
    for (const char* phase : {"forward_ms", "backward_ms", "communication_ms", "optimizer_ms"}) {
      EXPECT_GT(metric(runs.path(name), phase), 0) << phase;
    }
    expect_equal(runs.weights(name), weights);
  }
  for (const auto& [name, forms] : {std::pair{"tcp_dp", std::vector<std::string>{}},
                                    {"tcp_fsdp_pp", {"parallel.pp=2", "parallel.fsdp=2"}}}) {
    SCOPED_TRACE(name);
    auto divided = words;
    divided.insert(divided.end(), forms.begin(), forms.end());
    runs.train_over_tcp(4, true, name, divided);
    expect_equal(runs.weights(name), weights);
    expect_refused([&] { runs.train_over_tcp(4, false, "refused", divided); }, Errc::kBadConfig,
                   "InitOptions::ordered_sums");
  }
  EXPECT_THAT(runs.refused(2, {"train.reproducible=true", "parallel.tp=2"}),
              HasSubstr("sum in another order"));
  EXPECT_THAT(runs.refused(3, {"train.reproducible=true"}), HasSubstr("nearest that works"));
}

TEST(TextTrainer, ResumesFromACheckpointOfAnotherPlan) {
  const TextRuns runs;
  const std::vector<std::string> words = {"data.tokenizer=\"bpe:260\"", "model.family=llama"};
  runs.train(1, "whole", words);
  auto half = words;
  half.push_back("train.max_steps=3");
  half.push_back("parallel.tp=2");
  EXPECT_EQ(runs.train(2, "cut", half).steps, 3);
  // From tensor parallelism to pipeline stages, then to FSDP, then to one process.
  for (const auto& [form, steps] : {std::pair{"parallel.pp=2", 6}, {"parallel.fsdp=2", 9}}) {
    half = words;
    half.push_back("train.max_steps=" + std::to_string(steps));
    half.emplace_back(form);
    EXPECT_EQ(runs.train(2, "cut", half).steps, steps);
  }
  runs.train(1, "cut", words);
  expect_close(runs.weights("cut"), runs.weights("whole"));
}

TEST(TextTrainer, RefusesToGoOnWithAnotherText) {
  const TextRuns runs;
  runs.train(1, "run", {"train.max_steps=3"});
  const std::string file = runs.path("verses.txt"), verses = read_file(file, 1 << 20);
  write_file_atomic(file, verses + "wool");
  EXPECT_THAT(refusal([&] { runs.train(1, "run", {"train.max_steps=5"}); }, Errc::kBadConfig),
              HasSubstr("has another text than the run began with: 2005 tokens, and 2001 before"));
  write_file_atomic(file, verses);
  EXPECT_EQ(runs.train(1, "run", {"train.max_steps=5"}).steps, 5);
}

// The run has ended before it wrote tokenizer.json.
TEST(TextTrainer, TrainsTheTokenizerOfARunThatResumesWithoutOne) {
  const TextRuns runs;
  replicate(1, [&](const Group& group) {
    const auto config = runs.config({"data.tokenizer=bpe:260"});
    const TempDir run;
    internal::text_task(config, group, internal::Begin::kResumed)->make(run.path());
    const std::string json = read_file(run / "tokenizer.json", 1 << 20);
    EXPECT_EQ(json, data::text::train_bpe({runs.path("verses.txt")}, {.vocab_size = 260}));
  });
}

TEST(TextTrainer, HoldsOutAsMuchAsItIsAskedToWhereTheLastDocumentIsShort) {
  const TextRuns runs;
  const std::string folder = runs.path("texts");
  make_directories(folder);
  write_file_atomic(folder + "/a.txt", std::string(4000, 'a'));
  write_file_atomic(folder + "/b.txt", std::string(40, 'b'));
  replicate(1, [&](const Group& group) {
    const auto config = runs.config({"data.file=\"" + folder + "\"", "data.validation=0.1"});
    const TempDir run;
    const Task task = internal::text_task(config, group, internal::Begin::kNew)->make(run.path());
    EXPECT_EQ(task.test.size, 26);  // windows of 16 in 404 tokens
  });
}

TEST(TextTrainer, ItsModelsGenerateTheTextThatTheyHaveLearned) {
  const TextRuns runs;
  runs.train(1, "run", {"train.epochs=6"});
  const std::string run = runs.path("run");
  // 10 + 30 tokens are more than the context length of the model.
  const GenerateOptions likeliest{.prompt = "warp weft ", .tokens = 30, .temperature = 0};
  const std::string text = text_of(run, likeliest);
  EXPECT_EQ(text, "warp weft warp weft warp weft ");
  const GenerateOptions drawing{
      .prompt = "warp ", .tokens = 12, .temperature = 2, .top_k = 5, .seed = 3};
  EXPECT_EQ(text_of(run, drawing), text_of(run, drawing));
  // Two ranks, each with half of the heads, generate the same text.
  const GenerateOptions few{
      .prompt = "warp weft warp", .tokens = 4, .temperature = 0.5, .top_p = 0.9};
  const std::string alone = text_of(run, few);
  replicate(2, [&](const Group& group) {
    EXPECT_EQ(text_of(run, few, parallel::TensorParallel(group, 1)), alone);
  });
  GenerateOptions stopping = likeliest;
  stopping.stop = {"weft warp", "arp we"};  // the second one occurs first
  EXPECT_EQ(text_of(run, stopping), "w");
  stopping.stop = {"t", "ft wool"};  // the beginning of the second one comes before the first one
  EXPECT_EQ(text_of(run, stopping), "warp wef");
  stopping.stop = {"ft wool"};  // only its beginning occurs
  EXPECT_EQ(text_of(run, stopping), text);
  EXPECT_THROW(text_of(run, {.tokens = -1}), Error);
  EXPECT_THROW(text_of(run, {.top_p = 0}), Error);
  EXPECT_THROW(text_of(run, {.stop = {""}}), Error);
  EXPECT_THROW(text_of(runs.path("none"), {}), Error);
}

TEST(TextTrainer, ItsModelsAreExportedToTransformersAndReadBack) {
  const TextRuns runs;
  for (const std::string family : {"gpt2", "llama"}) {
    runs.train(1, family,
               {"train.epochs=3", "model.family=" + family,
                family == "gpt2" ? "data.tokenizer=bytes" : "data.tokenizer=\"bpe:260\""});
    const std::string output = runs.path("for_" + family);
    export_huggingface(runs.path(family), output);
    for (const GenerateOptions& options :
         {GenerateOptions{.tokens = 10, .temperature = 0},
          GenerateOptions{.prompt = "we", .tokens = 14, .seed = 2}})
      EXPECT_EQ(text_of(output, options), text_of(runs.path(family), options)) << family;
    EXPECT_THROW(export_huggingface(runs.path(family), output), Error) << "overwrote a model";
  }
}

TEST(TextTrainer, ItsModelsAreExportedWithoutABeginTokenThatTrainingHasNotUsed) {
  const TextRuns runs;
  auto tokenizer =
      nlohmann::json::parse(data::text::train_bpe({runs.path("verses.txt")}, {.vocab_size = 260}));
  tokenizer["post_processor"] = nlohmann::json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}]})");
  const std::string file = runs.path("begins.json"), output = runs.path("export");
  write_file_atomic(file, tokenizer.dump());
  EXPECT_EQ(internal::begin_token(tokenizer.dump()), "<|endoftext|>");
  runs.train(1, "run", {"train.max_steps=1", "data.tokenizer=\"" + file + "\""});
  export_huggingface(runs.path("run"), output);
  EXPECT_EQ(internal::begin_token(read_file(output + "/tokenizer.json", 1 << 20)), "");
  const GenerateOptions options{.prompt = "warp", .tokens = 8, .seed = 2};
  EXPECT_EQ(text_of(output, options), text_of(runs.path("run"), options));
}

TEST(Generate, DrawsFromTheLikeliestTokensOnly) {
  const at::Tensor logits = at::log(at::tensor({0.1, 0.5, 0.15, 0.25}, at::kDouble));
  const auto expect = [&](const GenerateOptions& options, std::initializer_list<double> want) {
    const at::Tensor got = distribution(logits, options);
    EXPECT_TRUE(
        at::allclose(got, at::tensor(at::ArrayRef<double>(want), at::kDouble), 1e-12, 1e-12))
        << got;
  };
  expect({.temperature = 1}, {0.1, 0.5, 0.15, 0.25});
  expect({.temperature = 0.5}, {0.01 / 0.345, 0.25 / 0.345, 0.0225 / 0.345, 0.0625 / 0.345});
  expect({.temperature = 1, .top_k = 2}, {0, 2.0 / 3, 0, 1.0 / 3});
  expect({.temperature = 1, .top_k = 9}, {0.1, 0.5, 0.15, 0.25});
  // The fewest tokens whose sum reaches top_p: 0.5 does not reach 0.6, but 0.5 + 0.25 does.
  expect({.temperature = 1, .top_p = 0.6}, {0, 2.0 / 3, 0, 1.0 / 3});
  expect({.temperature = 1, .top_p = 0.8}, {0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9});
  expect({.temperature = 1, .top_p = 0.01}, {0, 1, 0, 0});
  expect({.temperature = 1, .top_k = 2, .top_p = 0.6},
         {0, 1, 0, 0});  // 2/3 of the tokens left by top_k reaches top_p
}

TEST(Generate, TakesTheBeginTokenFromTheTemplateOfTheTokenizer) {
  EXPECT_EQ(internal::begin_token(
                R"({"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin_of_text|>",
      "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}]}})"),
            "<|begin_of_text|>");
  EXPECT_EQ(internal::begin_token(
                R"({"post_processor": {"type": "TemplateProcessing",
      "single": [{"Sequence": {"id": "A"}}]}})"),
            "");
  EXPECT_EQ(internal::begin_token(R"({"post_processor": null})"), "");
  EXPECT_EQ(internal::begin_token(""), "");
}

TEST(TextTrainer, RejectsInvalidPlansAndLeavesNoRunFolder) {
  const TextRuns runs;
  EXPECT_THAT(runs.refused(2, {"parallel.tp=3"}), HasSubstr("nearest: dp=1,tp=2"));
  EXPECT_THAT(runs.refused(1, {"data.file=\"/nowhere\""}), HasSubstr("/nowhere"));
  EXPECT_THAT(runs.refused(1, {"data.tokenizer=\"bpe:9\""}), HasSubstr("bpe:N"));
  EXPECT_THAT(runs.refused(2, {"parallel.fsdp=2", "parallel.codec=bf16"}),
              HasSubstr("use dp on the slow links"));
  EXPECT_THAT(runs.refused(2, {"parallel.pp=2", "parallel.cuts=[9]"}),
              HasSubstr("cuts must rise from 1 to 2"));
  EXPECT_THAT(runs.refused(2, {"parallel.ep=2"}), HasSubstr("but this model has none"));
  EXPECT_THAT(runs.refused(2, {"parallel.pp=2", "parallel.micro_batches=16"}),
              HasSubstr("into 16 micro-batches"));
}

}  // namespace text_trainer_test
}  // namespace weft::train
