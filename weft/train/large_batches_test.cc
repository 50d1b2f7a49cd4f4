// Recipes with LARS, LAMB, Adafactor, Muon, Adasum and the gradient noise scale.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "weft/base/testing/refusal.h"
#include "weft/train/internal/batch_schedule.h"
#include "weft/train/testing/image_runs.h"

namespace weft::train {
namespace large_batches_test {

using internal::expect_same_bits;
using internal::Outcome;
using internal::with;
using Runs = internal::ImageRuns;

const std::vector<std::string> kMlp = {"model.name=mlp", "model.hidden=[32]",
                                       "schedule.name=constant"};
const std::vector<std::vector<std::string>> kRules = {
    {"optimizer.name=lars", "optimizer.trust=0.02", "optimizer.lr=1"},
    {"optimizer.name=lamb", "optimizer.lr=0.02"},
    {"optimizer.name=adafactor", "optimizer.lr=0.05"},
    {"optimizer.name=muon", "optimizer.lr=0.02", "optimizer.adam_lr=0.5"},
    {"optimizer.name=sgd", "optimizer.lr=0.02", "parallel.reduce=adasum"}};

double loss_at(const Outcome& run, bool last) {
  return std::stod((last ? run.losses.back() : run.losses.front()).substr(7));
}

TEST(LargeBatches, RulesLearnAndResumeWithTheSameBits) {
  Runs runs;
  for (const auto& rule : kRules) {
    SCOPED_TRACE(rule.front() + rule.back());
    const auto words = with(with(kMlp, rule), {"train.epochs=4"});
    const std::string name = rule[0].substr(15) + std::to_string(rule.back().size());
    const Outcome whole = runs.train(2, name, words);
    EXPECT_LT(loss_at(whole, true), 0.8 * loss_at(whole, false));
    runs.train(2, name + "_cut", with(words, {"train.max_steps=8"}));
    expect_same_bits(runs.train(2, name + "_cut", words), whole);
  }
}

TEST(LargeBatches, RulesHaveTheSameBitsAtAnyNumberOfRanksIfReproducible) {
  Runs runs;
  for (const auto& rule : kRules) {
    if (rule.back() == "parallel.reduce=adasum") continue;
    SCOPED_TRACE(rule.front());
    const auto words = with(with(kMlp, rule), {"train.reproducible=true", "train.max_steps=4"});
    const std::string name = rule[0].substr(15);
    const Outcome one = runs.train(1, name + "1", words);
    expect_same_bits(runs.train(2, name + "2", words), one);
    expect_same_bits(runs.train(4, name + "4", with(words, {"parallel.fsdp=2", "parallel.dp=2"})),
                     one);
  }
}

// noise_scale of the records in a metrics file, by step; below 0: none.
std::vector<double> noise_of(const std::string& file) {
  std::vector<double> scales;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line);
    if (!record.contains("grad_norm")) continue;
    scales.push_back(record.value("noise_scale", -1.0));
  }
  return scales;
}

TEST(LargeBatches, NoiseScaleIsInTheMetricsOfEveryStepAlsoAfterResuming) {
  Runs runs;
  const auto words = with(kMlp, {"train.noise_scale=true", "optimizer.lr=0.02"});
  const Outcome whole = runs.train(2, "whole", words);
  const auto scales = noise_of(runs.path("whole") + "/metrics.jsonl");
  ASSERT_EQ(scales.size(), 14U) << "two epochs of seven steps";
  EXPECT_GT(scales.back(), 0);
  EXPECT_LT(scales.back(), 1e6);
  runs.train(2, "cut", with(words, {"train.max_steps=9"}));
  expect_same_bits(runs.train(2, "cut", words), whole);
  EXPECT_EQ(noise_of(runs.path("cut") + "/metrics.jsonl"), scales);
}

TEST(BatchSchedule, GrowsToTheNoiseScaleAtMostTwofoldAndWithinItsBound) {
  using internal::next_passes;
  EXPECT_EQ(next_passes(1, std::nullopt, 16, 8), 1);
  EXPECT_EQ(next_passes(1, 1000.0, 16, 8), 2);
  EXPECT_EQ(next_passes(4, 1000.0, 16, 8), 8);
  EXPECT_EQ(next_passes(6, 1e300, 16, 8), 8);
  EXPECT_EQ(next_passes(2, 49.0, 16, 8), 3);
  EXPECT_EQ(next_passes(4, 20.0, 16, 8), 4) << "never fewer";
  EXPECT_EQ(next_passes(1, 3.0, 16, 8), 1);
}

TEST(BatchSchedule, TakesSeveralBatchesAStepAndResumesWithTheSameBits) {
  Runs runs;
  const auto words = with(kMlp, {"train.batch=4", "train.batch_schedule=noise",
                                 "train.max_batch=16", "optimizer.lr=0.02", "train.epochs=3"});
  const Outcome whole = runs.train(2, "whole", words);
  std::ifstream in(runs.path("whole") + "/metrics.jsonl");
  std::vector<double> batches;
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("grad_norm")) batches.push_back(record.at("batch"));
  }
  EXPECT_EQ(batches.front(), 4);
  EXPECT_EQ(*std::max_element(batches.begin(), batches.end()), 16);
  EXPECT_EQ(std::accumulate(batches.begin(), batches.end(), 0.0), 300) << "three epochs";
  EXPECT_LT(loss_at(whole, true), loss_at(whole, false));
  const std::string steps = std::to_string(batches.size() - 5);
  runs.train(2, "cut", with(words, {"train.max_steps=" + steps}));
  const Outcome again = runs.train(2, "cut", words);
  for (const auto& [name, tensor] : whole.tensors)
    EXPECT_TRUE(at::equal(tensor, again.tensors.at(name))) << name;
}

// A step has more batches than before, and the line counts batches.
TEST(BatchSchedule, TheLineShowsAllOfARunOnlyAtItsEnd) {
  Runs runs;
  runs.progress = observe::ProgressMode::kJson;
  testing::internal::CaptureStderr();
  const Outcome run =
      runs.train(2, "run",
                 with(kMlp, {"train.batch=4", "train.batch_schedule=noise", "train.max_batch=16",
                             "optimizer.lr=0.02", "train.epochs=40", "train.max_steps=90",
                             "train.eval_every=0", "train.checkpoint_every=0"}));
  std::istringstream log(testing::internal::GetCapturedStderr());
  std::vector<std::int64_t> done, total;
  for (std::string line; std::getline(log, line);) {
    if (!line.starts_with("{\"event\":\"progress\"")) continue;
    const auto record = nlohmann::json::parse(line);
    done.push_back(record.at("run_done"));
    total.push_back(record.at("run_total"));
  }
  EXPECT_EQ(run.result.steps, 90);
  ASSERT_GE(done.size(), 2U) << "a line at the end of each epoch";
  EXPECT_GT(done.back(), 90) << "batches";
  for (std::size_t i = 0; i + 1 < done.size(); ++i) EXPECT_LT(done[i], total[i]);
  EXPECT_EQ(done.back(), total.back());
}

TEST(LargeBatches, AreRefusedWhereTheyCannotWork) {
  Runs runs;
  const auto refused = [&](const std::vector<std::string>& words, int ranks, const char* why) {
    expect_refused([&] { runs.train(ranks, "refused", with(kMlp, words)); }, Errc::kBadConfig, why);
  };
  refused({"parallel.reduce=adasum"}, 3, "a power of two of ranks on dp, not 3");
  refused({"parallel.reduce=adasum", "parallel.fsdp=2"}, 2, "does not support fsdp");
  refused({"parallel.reduce=adasum", "train.reproducible=true"}, 2, "does not support");
  refused({"parallel.reduce=adasum", "strategy.name=local_sgd"}, 2, "parallel.reduce");
  refused({"train.noise_scale=true", "train.reproducible=true"}, 2, "measure_noise");
  refused({"train.noise_scale=true", "strategy.name=local_sgd"}, 2, "train.noise_scale");
  refused({"train.batch_schedule=noise", "train.verify_steps=5"}, 2, "train.verify_steps");
}

}  // namespace large_batches_test
}  // namespace weft::train
