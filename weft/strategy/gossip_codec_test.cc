// Gossip through codecs: against the equations of CHOCO-SGD, its convergence, its state.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/schedule/gossip.h"
#include "weft/strategy/strategy.h"
#include "weft/strategy/testing/rules.h"

namespace weft::strategy {
namespace gossip_codec_test {

using rules_test::Vectors;

constexpr std::int64_t kCount = 2000;

at::Tensor values_of(int worker) {
  return torch::sin(torch::arange(kCount, torch::kFloat) * (worker + 1.37)) + 0.1 * worker;
}

double distance(const Vectors& all) {
  const at::Tensor stacked = torch::stack(all).to(torch::kDouble);
  return (stacked - stacked.mean(0)).norm().item<double>();
}

// Workers that begin with values_of() and only exchange: what they have after so many rounds.
Vectors agree(int workers, const Strategy& strategy, int rounds) {
  Vectors all(static_cast<std::size_t>(workers));
  comm::replicate(workers, [&](const Group& group) {
    at::Tensor x = torch::zeros({kCount});
    const auto rule = make_rule(strategy, {.workers = group, .world = group, .weights = {x}});
    x.copy_(values_of(group.rank()));
    for (int round = 1; round <= rounds; ++round) rule->after_step({round, 0.1, 0, 1});
    all[static_cast<std::size_t>(group.rank())] = x;
  });
  return all;
}

Vectors begin(int workers) {
  Vectors all;
  for (int worker = 0; worker < workers; ++worker) all.push_back(values_of(worker));
  return all;
}

at::Tensor top_of(const at::Tensor& x, std::int64_t count) {
  const at::Tensor places = std::get<1>(x.abs().topk(count));
  return torch::zeros_like(x).index_put({places}, x.index({places}));
}

// Each worker keeps what it knows of every other one: algorithm 2 of the paper.
TEST(GossipCodec, FollowsTheEquationsOfChocoSgd) {
  constexpr int kWorkers = 4, kRounds = 12;
  constexpr double kStep = 0.3;
  for (const char* graph : {"ring", "exponential"}) {
    const schedule::Gossip gossip{schedule::parse_graph(graph), kWorkers};
    Vectors x = begin(kWorkers), known(kWorkers, torch::zeros({kCount}));
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < kWorkers; ++i)
        known[i] = known[i] + top_of(x[i] - known[i], kCount / 10);
      for (std::size_t i = 0; i < kWorkers; ++i) {
        const auto mixing = schedule::mixing(gossip, static_cast<int>(i), 0);
        at::Tensor sum = known[i] * (mixing.self - 1);
        for (const auto& from : mixing.hears)
          sum = sum + known[static_cast<std::size_t>(from.rank)] * from.weight;
        x[i] = x[i] + sum * kStep;
      }
    }
    const Vectors found = agree(
        kWorkers, {.name = "gossip", .lr = kStep, .graph = graph, .codec = "topk:0.1"}, kRounds);
    for (std::size_t i = 0; i < kWorkers; ++i) rules_test::expect_close(found[i], x[i], 1e-4);
  }
}

// From values that are independent: the hardest case for a codec that sends a part.
TEST(GossipCodec, WorkersComeCloserWithEveryCodecAndKeepTheirMean) {
  constexpr int kWorkers = 8, kRounds = 120;
  const Vectors first = begin(kWorkers);
  const at::Tensor mean = rules_test::mean_of(first);
  const struct {
    const char* codec;
    double most;  // of the first distance
  } cases[] = {{"bf16", 1e-4},     {"int8:64", 1e-4},      {"int4:64,stochastic", 1e-2},
               {"topk:0.1", 1e-2}, {"topk:0.01", 0.5},     {"randomk:0.1", 0.5},
               {"sign:256", 0.1},  {"threshold:0.01", 0.1}};
  for (const char* graph : {"ring", "exponential"}) {
    for (const auto& [codec, most] : cases) {
      const Vectors last =
          agree(kWorkers, {.name = "gossip", .graph = graph, .codec = codec}, kRounds);
      EXPECT_LT(distance(last) / distance(first), most) << graph << " " << codec;
      EXPECT_LT((rules_test::mean_of(last) - mean).abs().max().item<double>(), 1e-4) << codec;
    }
  }
}

TEST(GossipCodec, TrainsAsWithoutACodec) {
  constexpr int kWorkers = 4, kSteps = 300;
  Vectors means;
  for (const char* codec : {"none", "int8:64", "topk:0.3", "threshold:0.001"}) {
    comm::replicate(kWorkers, [&](const Group& group) {
      at::Tensor x = rules_test::initial().to(torch::kFloat);
      const auto rule = make_rule({.name = "gossip", .graph = "ring", .codec = codec},
                                  {.workers = group, .world = group, .weights = {x}});
      for (int step = 1; step <= kSteps; ++step) {
        const at::Tensor gradient = rules_test::gradient(x.to(torch::kDouble), group.rank());
        x.sub_(gradient.to(torch::kFloat), 0.02);
        rule->after_step({step, 0.02, 0, 1});
      }
      const at::Tensor& result = rule->result().weights[0];
      if (group.rank() == 0) means.push_back(result.clone());
    });
  }
  for (std::size_t i = 1; i < means.size(); ++i)
    EXPECT_LT((means[i] - means[0]).abs().max().item<double>(), 0.02) << i;
}

// As after a checkpoint: the weights and the own state of each rule are written over.
TEST(GossipCodec, GoesOnFromItsStateAndWithoutIt) {
  constexpr int kWorkers = 3, kBefore = 9, kAfter = 30;
  const Strategy strategy{.name = "gossip", .graph = "ring", .codec = "topk:0.2"};
  const Vectors whole = agree(kWorkers, strategy, kBefore + kAfter);
  for (const bool has_own : {true, false}) {
    Vectors all(kWorkers);
    comm::replicate(kWorkers, [&](const Group& group) {
      at::Tensor x = torch::zeros({kCount}), y = torch::zeros({kCount});
      const auto first = make_rule(strategy, {.workers = group, .world = group, .weights = {x}});
      x.copy_(values_of(group.rank()));
      for (int round = 1; round <= kBefore; ++round) first->after_step({round, 0.1, 0, 1});
      const auto second = make_rule(strategy, {.workers = group, .world = group, .weights = {y}});
      y.copy_(x);
      // Rank 1 is new to the job.
      if (has_own || group.rank() != 1)
        second->state().own.at(0).copy_(first->state().own.at(0));
      else
        second->reset_own();
      second->restored();
      for (int round = kBefore + 1; round <= kBefore + kAfter; ++round)
        second->after_step({round, 0.1, 0, 1});
      all[static_cast<std::size_t>(group.rank())] = y;
    });
    EXPECT_LT((rules_test::mean_of(all) - rules_test::mean_of(whole)).abs().max().item<double>(),
              1e-4);
    if (has_own) {
      for (std::size_t i = 0; i < kWorkers; ++i) rules_test::expect_close(all[i], whole[i], 1e-4);
    } else {
      EXPECT_LT(distance(all), 0.1 * distance(begin(kWorkers)));
    }
  }
}

TEST(GossipCodec, SendsLess) {
  comm::replicate(4, [](const Group& group) {
    const auto sent = [&](const char* codec) {
      at::Tensor x = torch::zeros({100'000});
      const auto rule = make_rule({.name = "gossip", .graph = "ring", .codec = codec},
                                  {.workers = group, .world = group, .weights = {x}});
      x.add_(group.rank());
      const auto bytes = [&] {
        const comm::Traffic traffic = group.traffic();
        return static_cast<double>(traffic.sent_bytes + traffic.shared_bytes);
      };
      const double before = bytes();
      rule->after_step({1, 0.1, 0, 1});
      return bytes() - before;
    };
    const double plain = sent("none");
    EXPECT_GT(plain, 0);
    EXPECT_LT(sent("int8:64"), 0.3 * plain);
    EXPECT_LT(sent("topk:0.01"), 0.03 * plain);
    EXPECT_LT(sent("sign:1024"), 0.04 * plain);
  });
}

}  // namespace gossip_codec_test
}  // namespace weft::strategy
