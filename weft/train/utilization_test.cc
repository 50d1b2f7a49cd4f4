// FLOPs and traffic in metrics.jsonl, compared with numbers computed by hand.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "weft/train/internal/text.h"
#include "weft/train/testing/text_runs.h"

namespace weft::train {
namespace utilization_test {

using internal::TextRuns;

std::vector<nlohmann::json> records_of(const std::string& run) {
  std::ifstream file(run + "/metrics.jsonl");
  std::vector<nlohmann::json> records;
  for (std::string line; std::getline(file, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

// 12 blocks of 12 · 768² weights and an output layer of 50257 · 768 weights: N = 123,532,032.
TEST(GptFlops, PerTokenOfGpt2SmallAreSixTimesTheWeightsPlusAttention) {
  EXPECT_EQ(internal::gpt_flops_per_token({}), 6.0 * 123'532'032 + 12.0 * 12 * 768 * 1024);
}

// Llama 2 7B has 6,738,415,616 parameters. A token is multiplied with all of them except the
// embedding (32000 · 4096) and the 65 norms of 4096.
TEST(GptFlops, OfLlamaExcludeTheEmbeddingAndTheNorms) {
  const auto llama = models::like_llama({.vocabulary = 32000,
                                         .layers = 32,
                                         .width = 4096,
                                         .heads = 32,
                                         .hidden = 11008,
                                         .sequence_length = 2048});
  const double weights = 6'738'415'616.0 - 32000.0 * 4096 - 65 * 4096;
  EXPECT_EQ(internal::gpt_flops_per_token(llama), 6 * weights + 12.0 * 32 * 4096 * 2048);
}

TEST(GptFlops, CountOnlyTheExpertsThatATokenUses) {
  models::GptOptions dense, sparse;
  sparse.experts = 8;
  sparse.experts_top_k = 1;
  EXPECT_EQ(internal::gpt_flops_per_token(sparse) - internal::gpt_flops_per_token(dense),
            6.0 * 12 * 768 * 8);  // the routers
}

// One block of width 16 (12 · 16² weights), a vocabulary of 256 bytes and an end token, sequences
// of 16 tokens.
TEST(Mfu, IsTheFlopsOfASampleTimesTheSpeedOverThePeakOfAllRanks) {
  const TextRuns runs;
  runs.train(2, "mfu", {"train.peak_tflops=0.001", "train.epochs=1"});
  const double flops = 16 * (6 * (12 * 16 * 16 + 257 * 16) + 12 * 16 * 16);
  int seen = 0;
  for (const auto& record : records_of(runs.path("mfu"))) {
    if (!record.contains("samples_per_s")) continue;
    const double expected = flops * record["samples_per_s"].get<double>() / (2 * 1e9);
    EXPECT_NEAR(record["mfu"].get<double>(), expected, 1e-9 * expected);
    ++seen;
  }
  EXPECT_GT(seen, 5);
}

TEST(Mfu, IsNotWrittenIfPeakOrFlopsAreUnknown) {
  const TextRuns runs;
  runs.train(1, "no_peak", {"train.max_steps=2"});
  runs.train(1, "lstm", {"train.max_steps=2", "model.name=lstm", "train.peak_tflops=1"});
  for (const char* run : {"no_peak", "lstm"}) {
    for (const auto& record : records_of(runs.path(run))) EXPECT_FALSE(record.contains("mfu"));
  }
}

// Two ranks over TCP: an all-reduce of n bytes sends n bytes from each rank, 2 n (W - 1) / W. The
// engine starts to tune at step 5. Without overlap_forward, each exchange ends within its step.
TEST(TrafficOfARun, IsTheGradientsPlusALittleControlTraffic) {
  const TextRuns runs;
  runs.train_over_tcp(2, false, "tcp",
                      {"train.max_steps=4", "train.log_every=2", "parallel.overlap_forward=false"});
  double parameters = 0;
  for (const auto& [name, tensor] : runs.weights("tcp"))
    parameters += static_cast<double>(tensor.numel());
  int seen = 0;
  for (const auto& record : records_of(runs.path("tcp"))) {
    if (!record.contains("sent_mb")) continue;
    EXPECT_GE(record["sent_mb"].get<double>() * 1e6, 4 * parameters);
    EXPECT_LE(record["sent_mb"].get<double>() * 1e6, 4 * parameters + 500);
    EXPECT_EQ(record["shared_mb"], 0);
    ++seen;
  }
  EXPECT_EQ(seen, 2);
  const auto last = nlohmann::json::parse(read_file(runs.path("tcp") + "/ranks.json", 1 << 20));
  EXPECT_EQ(last["step"], 4);
  ASSERT_EQ(last["ranks"].size(), 2u);
  for (const auto& rank : last["ranks"]) {
    EXPECT_GE(rank["sent_bytes"].get<double>(), 4 * 4 * parameters);
    EXPECT_GT(rank["memory_bytes"].get<double>(), 1e6);
    EXPECT_GT(rank["compute_ms"].get<double>(), 0);
  }
}

// Each rank reduces its shard of the gradients (1 / W), and reads that shard from W - 1 ranks.
TEST(TrafficOfARun, InSharedMemoryIsTheGradientsThatRanksReadFromEachOther) {
  const TextRuns runs;
  runs.train(2, "memory", {"train.max_steps=4", "train.log_every=2", "parallel.weights=shared"});
  double parameters = 0;
  for (const auto& [name, tensor] : runs.weights("memory"))
    parameters += static_cast<double>(tensor.numel());
  int seen = 0;
  for (const auto& record : records_of(runs.path("memory"))) {
    if (!record.contains("shared_mb")) continue;
    EXPECT_EQ(record["sent_mb"], 0);
    EXPECT_GE(record["shared_mb"].get<double>() * 1e6, 4 * parameters / 2);
    EXPECT_LE(record["shared_mb"].get<double>() * 1e6, 4 * parameters / 2 + 500);
    ++seen;
  }
  EXPECT_EQ(seen, 2);
}

TEST(TrafficOfARun, IsNotWrittenForOneRank) {
  const TextRuns runs;
  runs.train(1, "alone", {"train.max_steps=2"});
  for (const auto& record : records_of(runs.path("alone")))
    EXPECT_FALSE(record.contains("sent_mb"));
}

}  // namespace utilization_test
}  // namespace weft::train
