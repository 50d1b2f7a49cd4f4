#include "weft/train/trainer.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/testing/folders.h"
#include "weft/train/internal/tracing.h"
#include "weft/train/testing/image_runs.h"

namespace weft::train {
namespace trainer_test {

using namespace std::chrono_literals;
using internal::expect_close;
using internal::expect_same_bits;
using internal::losses_of;
using internal::Outcome;
using internal::with;
using Runs = internal::ImageRuns;

const std::vector<std::string> kReproducible = {"train.reproducible=true", "train.epochs=1",
                                                "data.crop_padding=2", "data.flip=true"};

TEST(Reproducible, CnnHasTheSameBitsAtOneTwoAndFourRanks) {
  Runs runs;
  const auto one = runs.train(1, "one", kReproducible);
  expect_same_bits(one, runs.train(1, "again", kReproducible));
  expect_same_bits(one, runs.train(2, "two", kReproducible));
  expect_same_bits(one, runs.train(4, "four", kReproducible));
}

TEST(Reproducible, HasTheSameBitsOverTcp) {
  Runs runs;
  for (const char* model : {"model.name=mlp", "model.name=cnn"}) {
    const auto words = with(kReproducible, {model, "train.max_steps=4"});
    const std::string name = model;
    runs.tcp.reset();
    const auto one = runs.train(1, name.substr(11) + "_one", words);
    runs.tcp = Runs::Sums::kOrdered;
    expect_same_bits(one, runs.train(4, name.substr(11) + "_four", words));
    runs.tcp = Runs::Sums::kAsTheyCome;
    expect_refused([&] { runs.train(4, "refused", words); }, Errc::kBadConfig,
                   "InitOptions::ordered_sums");
    EXPECT_FALSE(std::filesystem::exists(runs.path("refused")));
  }
}

TEST(Reproducible, BatchNormHasTheSameBitsAtOneTwoAndFourRanks) {
  Runs runs;
  const auto words =
      with(kReproducible, {"model.name=resnet18", "model.stem=7x7", "train.max_steps=2",
                           "train.checkpoint_every=0", "train.checkpoint_minutes=0",
                           "optimizer.name=adamw", "optimizer.lr=0.001"});
  const auto one = runs.train(1, "one", words);
  ASSERT_TRUE(one.tensors.count("bn1.running_mean"));
  EXPECT_GT(one.tensors.at("bn1.running_mean").abs().max().item<double>(), 0);
  EXPECT_EQ(one.tensors.at("bn1.num_batches_tracked").item<std::int64_t>(), 2);
  expect_same_bits(one, runs.train(2, "two", words));
  expect_same_bits(one, runs.train(4, "four", words));
}

TEST(Reproducible, HasTheSameBitsForBatchesSmallerThanTheMicroShardsAndWithClipping) {
  Runs runs;
  // 33 batches of 3 samples and one of 1, in 4 micro-shards.
  const auto words =
      with(kReproducible, {"model.name=mlp", "train.batch=3", "optimizer.max_grad_norm=0.5"});
  const auto one = runs.train(1, "one", words);
  EXPECT_EQ(one.result.steps, 34);
  expect_same_bits(one, runs.train(2, "two", words));
}

TEST(Trainer, AveragesOverSamplesSoThatRanksChangeOnlyTheRounding) {
  Runs runs;
  const std::vector<std::string> words = {"model.name=mlp", "model.hidden=[32]", "train.epochs=1"};
  const auto one = runs.train(1, "one", words);
  const auto three = runs.train(3, "three", words);  // batches of 16 over 3 ranks, then one of 4
  ASSERT_EQ(one.losses.size(), 7u);
  ASSERT_EQ(three.losses.size(), 7u);
  for (const auto& [name, tensor] : one.tensors)
    EXPECT_TRUE(at::allclose(tensor, three.tensors.at(name), 1e-4, 1e-6)) << name;
  EXPECT_NEAR(one.result.loss, three.result.loss, 1e-4);
}

TEST(Trainer, TakesTheLogSoftmaxOfTheOutputForTheLossNll) {
  Runs runs;
  const std::vector<std::string> words = {"model.name=mlp", "model.hidden=[32]", "train.epochs=1"};
  const auto nll = runs.train(1, "nll", with(words, {"train.loss=nll"}));
  const auto entropy = runs.train(1, "entropy", words);
  EXPECT_GT(nll.result.loss, 0);
  EXPECT_NEAR(nll.result.loss, entropy.result.loss, 1e-5);
  expect_close(nll, entropy, 1e-5);
}

TEST(Trainer, BalancesBySpeedWithTheSameResultAsEvenShares) {
  Runs runs;
  const std::vector<std::string> words = {"model.name=mlp", "model.hidden=[32]", "train.epochs=3",
                                          "train.log_every=1"};
  const auto even = runs.train(2, "even", words);
  const auto speed =
      runs.train(2, "speed", with(words, {"train.balance=speed", "data.prefetch=2"}));
  ASSERT_EQ(speed.losses.size(), even.losses.size());
  for (const auto& [name, tensor] : even.tensors)
    EXPECT_TRUE(at::allclose(tensor, speed.tensors.at(name), 1e-3, 1e-5)) << name;
}

TEST(Trainer, ResumesWithTheBitsOfTheUninterruptedRun) {
  Runs runs;
  for (const std::string optimizer : {"sgd", "adamw"}) {
    const auto words = with(kReproducible, {"train.epochs=2", "optimizer.name=" + optimizer,
                                            "optimizer.lr=0.01", "model.name=mlp"});
    const auto whole = runs.train(2, "whole-" + optimizer, words);
    runs.train(2, "cut-" + optimizer, with(words, {"train.max_steps=9"}));  // in the second epoch
    std::ofstream(runs.path("cut-" + optimizer) + "/metrics.jsonl", std::ios::app)
        << "{\"step\":10,\"epoch\":1,\"loss\":7}\n";
    const auto resumed = runs.train(1, "cut-" + optimizer, words);
    EXPECT_EQ(resumed.result.steps, 14);
    // Only the interrupted run evaluates at step 9. Losses and weights are the same.
    expect_same_bits(whole, resumed);
  }
}

TEST(Trainer, StopsOnAllRanksWithACheckpointWhenOneRankIsToldToStop) {
  Runs runs;
  std::atomic<int> asked{0};
  const auto cut =
      runs.train(2, "run", with(kReproducible, {"model.name=mlp"}), [&] { return ++asked == 1; });
  EXPECT_TRUE(cut.result.stopped);
  EXPECT_EQ(cut.result.steps, 3);
  const auto latest = checkpoint::latest(runs.path("run") + "/ckpt");
  ASSERT_TRUE(latest.folder.has_value());
  EXPECT_EQ(checkpoint::load(*latest.folder).step, 3);
  expect_same_bits(runs.train(2, "whole", with(kReproducible, {"model.name=mlp"})),
                   runs.train(2, "run", with(kReproducible, {"model.name=mlp"})));
}

TEST(Trainer, SavesByStepsAndByMinutesAndResumesWithTheSameBits) {
  Runs runs;
  const auto words = with(
      kReproducible, {"model.name=mlp", "train.epochs=2", "train.keep=0"});  // 7 steps an epoch
  const auto whole = runs.train(2, "whole", words);
  EXPECT_THAT(checkpoint::names_in(runs.path("whole") + "/ckpt"),
              testing::ElementsAre("step-00000007", "step-00000014"));
  runs.train(
      2, "steps",
      with(words, {"train.checkpoint_every=0", "train.checkpoint_steps=5", "train.log_every=3"}));
  EXPECT_THAT(checkpoint::names_in(runs.path("steps") + "/ckpt"),
              testing::ElementsAre("step-00000005", "step-00000010", "step-00000014"));
  const auto minutes = with(
      words, {"train.checkpoint_every=0", "train.checkpoint_minutes=1e-9", "train.log_every=3"});
  runs.train(2, "minutes", minutes);  // every third step and at the end of an epoch
  EXPECT_THAT(checkpoint::names_in(runs.path("minutes") + "/ckpt"),
              testing::ElementsAre("step-00000003", "step-00000006", "step-00000007",
                                   "step-00000009", "step-00000012", "step-00000014"));
  for (const std::string run : {"steps", "minutes"}) {
    for (const auto& name : checkpoint::names_in(runs.path(run) + "/ckpt")) {
      if (name > "step-00000006") std::filesystem::remove_all(runs.path(run) + "/ckpt/" + name);
    }
    expect_same_bits(whole, runs.train(1, run, words));
  }
}

// A run that ends after the checkpoint, and before the next metrics are due.
TEST(Trainer, ACheckpointComesAfterTheMetricsOfItsSteps) {
  Runs runs;
  const std::string run = runs.path("run");
  int looks = 0;
  const auto ends = [&] {
    // At a look with a checkpoint, which another thread may still write. The first look has none.
    const auto wait = ++looks == 1 ? 0ms : looks == 2 ? 200ms : 10000ms;
    const auto until = std::chrono::steady_clock::now() + wait;
    do {
      if (std::filesystem::exists(run + "/ckpt/step-00000005"))
        throw Error(Errc::kInternal, "ends here");
      std::this_thread::sleep_for(1ms);
    } while (std::chrono::steady_clock::now() < until);
    return false;
  };
  EXPECT_THROW(runs.train(1, "run",
                          {"model.name=mlp", "train.checkpoint_every=0", "train.checkpoint_steps=5",
                           "train.log_every=3"},
                          ends),
               Error);
  const std::string metrics = read_file(run + "/metrics.jsonl", 1 << 20);
  for (int step = 1; step <= 5; ++step)
    EXPECT_THAT(metrics, testing::HasSubstr("\"step\":" + std::to_string(step) + ",")) << metrics;
}

TEST(Trainer, SavesNoCheckpointIfNoIntervalIsSet) {
  Runs runs;
  runs.train(1, "run",
             {"model.name=mlp", "train.checkpoint_every=0", "train.checkpoint_minutes=0"});
  EXPECT_FALSE(checkpoint::latest(runs.path("run") + "/ckpt").folder.has_value());
}

TEST(Trainer, RejectsResumingWithAnotherBatchSizeOrModel) {
  Runs runs;
  const std::vector<std::string> words = {"model.name=mlp", "train.max_steps=2"};
  runs.train(1, "run", words);
  EXPECT_THROW(runs.train(1, "run", with(words, {"train.batch=20"})), Error);
  EXPECT_THROW(runs.train(1, "run", with(words, {"model.hidden=[16]"})), Error);
}

TEST(Trainer, WritesTheTimeLineOfTheRequestedStepsOfAllRanksOnOneClock) {
  Runs runs;
  const std::vector<std::string> words = {"model.name=mlp", "train.epochs=1"};
  runs.train(2, "run", words, {}, "steps=3:5");
  const auto trace = nlohmann::json::parse(read_file(runs.path("run") + "/trace.json", 1 << 20));
  std::map<std::pair<int, std::string>, int> spans;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans[{event["pid"], event["name"]}];
    EXPECT_GE(event["ts"].get<double>(), 0);
    EXPECT_LT(event["ts"].get<double>(), 60e6);
  }
  for (const int rank : {0, 1}) {
    for (const char* name : {"step", "data", "forward of micro-batch 0 in stage 0",
                             "backward of micro-batch 0 in stage 0", "optimizer"})
      EXPECT_EQ((spans[{rank, name}]), 3) << name;
    EXPECT_GE((spans[{rank, "peers"}]), 3);
  }
  runs.train(1, "short", with(words, {"train.max_steps=4"}), {}, "steps=3:9");
  EXPECT_TRUE(std::filesystem::exists(runs.path("short") + "/trace.json"));
  for (const char* wrong :
       {"steps=0:2", "steps=5:4", "3:5", "steps=1:2:3", "steps=1:5000", "steps=a:b"}) {
    EXPECT_THROW(internal::parse_trace(wrong), Error) << wrong;
  }
}

// Trains with messages from `level` on, and returns those in the run folder.
std::string log_of(Runs& runs, int world, const std::string& name, LogLevel level,
                   const std::vector<std::string>& words, const std::string& trace = "") {
  set_log_level(level);
  testing::internal::CaptureStderr();
  runs.train(world, name, words, {}, trace);
  testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::kError);
  return read_file(runs.path(name) + "/log.jsonl", 1 << 20);
}

TEST(Trainer, SaysThatARunIsResumedAfterTheStepsOfATraceAndKeepsTheTimeLine) {
  Runs runs;
  for (const std::string strategy : {"sync", "downpour"}) {
    const std::vector<std::string> words = {"model.name=mlp", "optimizer.lr=0.01",
                                            "strategy.name=" + strategy};
    runs.train(2, strategy, with(words, {"train.epochs=1"}), {}, "steps=3:5");
    const std::string file = runs.path(strategy) + "/trace.json";
    const std::string before = read_file(file, 1 << 20);
    EXPECT_THAT(before, testing::HasSubstr("\"step\""));
    EXPECT_THAT(log_of(runs, 2, strategy, LogLevel::kWarn, words, "steps=3:5"),
                testing::HasSubstr("training goes on after step 7, so no step of --trace "
                                   "steps=3:5 is left for a time line"));
    EXPECT_EQ(read_file(file, 1 << 20), before) << strategy;
  }
}

TEST(Trainer, RejectsSyncBatchNormForModelsWithoutBatchNorm) {
  Runs runs;
  EXPECT_THROW(runs.train(1, "cnn", {"model.name=cnn", "model.sync_batch_norm=true"}), Error);
  const auto outcome = runs.train(
      2, "resnet",
      {"model.name=resnet18", "model.stem=7x7", "model.sync_batch_norm=true", "train.max_steps=1"});
  EXPECT_EQ(outcome.result.steps, 1);
}

TEST(Trainer, LearnsUnderBf16AutocastWithWeightsInF32) {
  Runs runs;
  const auto outcome = runs.train(
      2, "run", {"model.name=mlp", "train.precision=bf16", "train.epochs=20", "optimizer.lr=0.05"});
  EXPECT_EQ(outcome.tensors.at("fc1.weight").scalar_type(), at::kFloat);
  EXPECT_LT(std::stod(outcome.losses.back().substr(7)),
            0.5 * std::stod(outcome.losses.front().substr(7)));
}

TEST(Trainer, WritesTheMetricsOfEveryStep) {
  Runs runs;
  runs.train(2, "run", {"model.name=mlp", "train.epochs=1"});
  const auto text = read_file(runs.path("run") + "/metrics.jsonl", 1 << 20);
  for (const char* name : {R"("loss":)", R"("lr":)", R"("samples_per_s":)", R"("data_ms":)",
                           R"("forward_ms":)", R"("backward_ms":)", R"("communication_ms":)",
                           R"("optimizer_ms":)", R"("accuracy":)", R"("test_loss":)"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(name));
  }
  EXPECT_EQ(losses_of(runs.path("run") + "/metrics.jsonl").size(), 7u);
}

// Steps of the evaluation records in a metrics.jsonl.
std::vector<std::int64_t> evaluated_steps(const std::string& file) {
  std::vector<std::int64_t> steps;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("accuracy")) steps.push_back(record.at("step").get<std::int64_t>());
  }
  return steps;
}

TEST(Evaluation, WithinAnEpochRunsEveryEvalStepsAndDoesNotChangeTheTraining) {
  Runs runs;
  const auto plain = runs.train(2, "plain", {"train.reproducible=true"});
  const auto looked_at =
      runs.train(2, "looked-at", {"train.reproducible=true", "train.eval_steps=3"});
  EXPECT_THAT(evaluated_steps(runs.path("plain") + "/metrics.jsonl"),
              ::testing::ElementsAre(7, 14));
  // 7 steps per epoch. The end of an epoch is evaluated only once.
  EXPECT_THAT(evaluated_steps(runs.path("looked-at") + "/metrics.jsonl"),
              ::testing::ElementsAre(3, 6, 7, 9, 12, 14));
  expect_same_bits(plain, looked_at);
}

TEST(Evaluation, IsLoggedWithItsOwnEpochOnly) {
  Runs runs;
  std::istringstream log(log_of(runs, 1, "run", LogLevel::kInfo,
                                {"model.name=mlp", "train.epochs=4", "train.eval_every=2"}));
  std::vector<int> has_results;
  for (std::string line; std::getline(log, line);) {
    if (line.find("epoch done") == std::string::npos) continue;
    const bool has_loss = line.find("test_loss") != std::string::npos;
    EXPECT_EQ(line.find("accuracy") != std::string::npos, has_loss) << line;
    has_results.push_back(has_loss ? 1 : 0);
  }
  EXPECT_THAT(has_results, testing::ElementsAre(0, 1, 0, 1));
}

TEST(Evaluation, CountsEverySampleOnceAtAnyWorldSize) {
  Runs runs;
  std::vector<Outcome> seen;
  for (const int world : {1, 2, 3, 5})
    seen.push_back(runs.train(world, "run" + std::to_string(world),
                              {"model.name=mlp", "train.epochs=0", "train.reproducible=false"}));
  for (const Outcome& one : seen) {
    EXPECT_GT(one.result.accuracy, 0);
    EXPECT_EQ(one.result.accuracy, seen[0].result.accuracy);
    // Not the same bits: libtorch may use other kernels for a share of another size.
    EXPECT_NEAR(one.result.loss, seen[0].result.loss, 1e-6 * seen[0].result.loss);
    const double right = one.result.accuracy * 70;
    EXPECT_NEAR(right, std::round(right), 1e-9) << "of 70 images";
  }
}

}  // namespace trainer_test
}  // namespace weft::train
