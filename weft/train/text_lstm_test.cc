// LSTMs in text recipes: trained, resumed, generated from.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/utils.h>

#include "weft/base/testing/refusal.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/train/export.h"
#include "weft/train/internal/reader.h"
#include "weft/train/testing/text_runs.h"

namespace weft::train {
namespace text_lstm_test {

using internal::Assignments;
using internal::expect_close;
using internal::expect_equal;
using internal::expect_learned_alike;
using internal::joined;
using internal::text_of;
using internal::TextRuns;
using testing::AllOf;
using testing::HasSubstr;

const Assignments kLstm = {"model.name=lstm", "model.layers=2"};
const Assignments kThatLearns = {"model.name=lstm", "model.layers=1", "model.width=32",
                                 "optimizer.lr=0.05", "train.epochs=10"};

TEST(TextLstm, LearnsTheSameOnOneAndTwoRanks) {
  const TextRuns runs;
  // 9 rows: one rank has 5, the other 4.
  expect_learned_alike(runs, joined(kLstm, {"train.batch=9", "optimizer.max_grad_norm=0.1"}),
                       {{"shared", 2, {"parallel.weights=shared"}},
                        {"private", 2, {"parallel.weights=private", "parallel.dp=2"}}});
  const auto weights = runs.weights("one");
  EXPECT_EQ(weights.count("decoder.weight"), 0);  // tied
  EXPECT_EQ(weights.at("rnn.weight_ih_l1").sizes(), (std::vector<std::int64_t>{64, 16}));
  const TextRuns untied;
  expect_learned_alike(untied, joined(kLstm, {"model.tied=false"}), {{"dp2", 2, {}}});
  EXPECT_EQ(untied.weights("one").count("decoder.weight"), 1);
}

TEST(TextLstm, LearnsTheSameOverTcpWithOverlappedForward) {
  const TextRuns runs;
  const Assignments words = joined(kLstm, {"parallel.overlap_forward=true"});
  runs.train(1, "one", words);
  const auto codes = comm::fork_ranks(2, "tcp", [&](const Group& group) {
    at::set_num_threads(1);
    runs.train(group, "two", words, /*resume=*/false);
    runs.train(group, "bf16", joined(words, {"parallel.codec=bf16"}), /*resume=*/false);
    return 0;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
  expect_close(runs.weights("two"), runs.weights("one"));
  const at::Tensor whole = runs.weights("one").at("encoder.weight"),
                   coded = runs.weights("bf16").at("encoder.weight");
  EXPECT_TRUE(at::allclose(coded, whole, 0, 0.05));
  EXPECT_FALSE(at::equal(coded, whole));
}

TEST(TextLstm, LearnsInBfloat16) {
  const TextRuns runs;
  const Assignments words = joined(kThatLearns, {"train.epochs=6"});
  const auto whole = runs.train(1, "f32", words),
             half = runs.train(1, "bf16", joined(words, {"train.precision=bf16"}));
  EXPECT_NEAR(half.loss, whole.loss, 0.1);
  EXPECT_GT(half.accuracy, 0.8);
  EXPECT_FALSE(at::equal(runs.weights("bf16").at("encoder.weight"),
                         runs.weights("f32").at("encoder.weight")));
}

TEST(TextLstm, LearnsTheSameWithPipelineParallelismAndFsdp) {
  for (const std::string tied : {"true", "false"}) {
    const TextRuns runs;
    // SGD, since Adam would take full-size steps for gradients that are only rounding errors.
    const Assignments words = joined(kLstm, {"model.tied=" + tied, "optimizer.name=sgd",
                                             "optimizer.lr=1", "optimizer.max_grad_norm=0.5"});
    expect_learned_alike(
        runs, words,
        {{"pp", 2, {"parallel.pp=2"}},
         {"fsdp", 2, {"parallel.fsdp=2"}},
         {"cut_late", 2, {"parallel.pp=2", "parallel.cuts=[3]", "train.recompute=full"}},
         {"pp_dp", 4, {"parallel.pp=2", "parallel.schedule=gpipe", "parallel.micro_batches=2"}}});
    EXPECT_EQ(runs.weights("pp").count("rnn.weight_hh_l1"), 1u);
    // A run can start with one plan and resume with another.
    runs.train(2, "mixed", joined(words, {"train.max_steps=5", "parallel.pp=2"}));
    runs.train(2, "mixed", joined(words, {"train.max_steps=9", "parallel.fsdp=2"}));
    runs.train(1, "mixed", words);
    expect_close(runs.weights("mixed"), runs.weights("one"));
  }
}

TEST(TextLstm, HasTheBitsOfOneProcessWithDataFsdpAndPipelineParallelism) {
  const TextRuns runs;
  const Assignments words =
      joined(kLstm, {"train.reproducible=true", "model.width=64", "model.dropout=0.2",
                     "train.batch=10", "train.max_steps=7", "optimizer.max_grad_norm=0.5"});
  runs.train(1, "one", words);
  const auto weights = runs.weights("one");
  for (const auto& [name, world, forms] :
       {internal::Split{"dp", 2, {}},
        {"fsdp_dp", 4, {"parallel.fsdp=2"}},
        {"decoder_apart",
         2,
         {"parallel.pp=2", "parallel.cuts=[3]"}},  // a decoder stage of its own has strided input
        {"pp_dp", 4, {"parallel.pp=2", "train.recompute=full"}}}) {
    SCOPED_TRACE(name);
    runs.train(world, name, joined(words, forms));
    expect_equal(runs.weights(name), weights);
  }
  runs.train_over_tcp(4, true, "tcp", words);
  expect_equal(runs.weights("tcp"), weights);
}

TEST(TextLstm, ResumesFromACheckpointWithAnotherNumberOfRanks) {
  const TextRuns runs;
  runs.train(1, "whole", kLstm);
  EXPECT_EQ(runs.train(2, "cut", joined(kLstm, {"train.max_steps=3"})).steps, 3);
  runs.train(1, "cut", kLstm);
  expect_close(runs.weights("cut"), runs.weights("whole"));
  runs.train(1, "alone", joined(kLstm, {"train.max_steps=3"}));
  runs.train(1, "alone", kLstm);
  expect_equal(runs.weights("alone"), runs.weights("whole"));
}

TEST(TextLstm, GeneratesTheTextThatItHasLearned) {
  const TextRuns runs;
  EXPECT_GT(runs.train(1, "run", kThatLearns).accuracy, 0.8);
  const std::string run = runs.path("run");
  // More tokens than a training sample has.
  const GenerateOptions likeliest{.prompt = "warp weft ", .tokens = 30, .temperature = 0};
  EXPECT_EQ(text_of(run, likeliest), "warp weft warp weft warp weft ");
  GenerateOptions drawing{.prompt = "warp ", .tokens = 12, .temperature = 2, .seed = 3};
  const std::string drawn = text_of(run, drawing);
  EXPECT_EQ(text_of(run, drawing), drawn);
  drawing.seed = 4;
  EXPECT_NE(text_of(run, drawing), drawn);
  EXPECT_THAT(refusal([&] { export_huggingface(run, runs.path("out")); }),
              HasSubstr("run of an LSTM"));
  EXPECT_FALSE(std::filesystem::exists(runs.path("out")));
  replicate(2, [&](const Group& group) {
    EXPECT_THAT(refusal([&] { text_of(run, likeliest, parallel::TensorParallel(group, 1)); }),
                HasSubstr("start one process"));
  });
}

TEST(TextLstm, GivesTheSameLogitsForATextReadInPieces) {
  torch::manual_seed(1);
  models::Lstm lstm(models::LstmOptions{.vocabulary = 11, .width = 6, .hidden = 6});
  lstm->eval();
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> context;
  for (std::int64_t i = 0; i < 605; ++i) context.push_back(i * i % 11);
  const at::Tensor whole = lstm->forward(at::tensor(context).unsqueeze(0)).squeeze(0);
  const auto reader = internal::make_reader(lstm);
  for (const std::int64_t seen : {600, 601, 605}) {
    const at::Tensor logits = reader->logits({context.begin(), context.begin() + seen});
    EXPECT_TRUE(at::allclose(logits, whole[seen - 1], 1e-5, 1e-6)) << seen;
  }
}

TEST(TextLstm, UsesTheSameDropoutMasksInProcessesAsOnThreads) {
  const TextRuns runs;
  const Assignments words = joined(kLstm, {"model.dropout=0.3", "train.max_steps=4"});
  const auto codes = comm::fork_ranks(2, "auto", [&](const Group& group) {
    runs.train(group, "processes", words, /*resume=*/false);
    return 0;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, 0}));
  runs.train(2, "threads", words);
  expect_equal(runs.weights("processes"), runs.weights("threads"));
}

TEST(TextLstm, RejectsKeysOfGptsAndLeavesNoRunFolder) {
  const TextRuns runs;
  const auto refused = [&](int world, const std::string& assignment) {
    return runs.refused(world, joined(kLstm, {assignment}));
  };
  EXPECT_THAT(refused(1, "model.heads=2"),
              AllOf(HasSubstr("model.heads (--set) is for model.name = \"gpt\""),
                    HasSubstr("leave it at 4")));
  EXPECT_THAT(refused(1, "model.family=llama"), HasSubstr("model.family"));
  EXPECT_THAT(refused(1, "model.experts=2"), HasSubstr("model.experts"));
  for (const std::string axis : {"tp", "cp", "ep"}) {
    EXPECT_THAT(refused(2, "parallel." + axis + "=2"),
                HasSubstr("parallel." + axis + " (--set) is for model.name = \"gpt\""));
  }
  EXPECT_THAT(refused(5, "parallel.pp=5"), HasSubstr("stages"));
  EXPECT_THAT(refused(3, "train.reproducible=true"), HasSubstr("nearest that works"));
  EXPECT_THAT(refused(1, "train.recompute=selective"), HasSubstr("use \"full\""));
  EXPECT_THAT(refused(1, "train.precision=f16"), HasSubstr("use \"bf16\""));
  EXPECT_THAT(refused(1, "data.name=shapes"), HasSubstr("go together"));
  EXPECT_THAT(runs.refused(1, {"model.tied=false"}), HasSubstr("is for model.name = \"lstm\""));
}

}  // namespace text_lstm_test
}  // namespace weft::train
