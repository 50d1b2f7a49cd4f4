#include "weft/strategy/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/testing/refusal.h"
#include "weft/comm/replicate.h"

namespace weft::strategy {
namespace {

using testing::HasSubstr;

TEST(Strategy, IsRefusedWithTheKeyToChange) {
  const auto refused = [](const Strategy& strategy, const std::string& why) {
    expect_refused([&] { check(strategy, 4); }, Errc::kBadConfig, why);
  };
  refused({.name = "esgd"},
          "strategy.name = \"esgd\": there is no such strategy; there are sync, ");
  refused({.name = "easgd", .beta = 1.5}, "strategy.beta = 1.5 must be in (0, 1]");
  refused({.name = "diloco", .momentum = 1}, "strategy.momentum = 1 must be below 1");
  refused({.name = "diloco", .period = 4, .fragments = 5}, "strategy.fragments = 5 must be from 1");
  refused({.name = "local_sgd", .fragments = 2}, "strategy.fragments is for diloco");
  refused({.name = "diloco", .adapt_steps = 2}, "strategy.adapt_steps");
  refused({.name = "gossip", .graph = "rnig"}, "strategy.graph: ");
  refused({.name = "gossip", .codec = "powersgd:2"}, "strategy.codec: powersgd needs the sum");
  refused({.name = "gossip", .codec = "randomk:0.1,ef=off"}, "so leave out \"ef=off\"");
  refused({.name = "gossip", .codec = "int8:64,warmup=5"}, "so leave out \"warmup\"");
  refused({.name = "gossip", .graph = "random_matching", .codec = "bf16"},
          "which the graph random_matching does not have; use ring, grid or exponential");
  refused({.name = "gossip", .lr = 2, .codec = "bf16"}, "strategy.lr = 2 must be above 0");
  refused({.name = "gossip", .lr = 1}, "strategy.lr: gossip without a codec");
  refused({.name = "local_sgd", .codec = "topq"}, "strategy.codec: ");
  refused({.name = "local_sgd", .codec = "auto"}, "strategy.codec = \"auto\": name a codec");
  refused({.name = "downpour", .codec = "powersgd:2"}, "strategy.codec: push_codec = ");
  refused({.name = "easgd_async", .codec = "randomk:0.1,ef=off"}, "strategy.codec: pull_codec = ");
  refused({.name = "sync", .backup = 1, .codec = "bf16"}, "strategy.codec: sync exchanges weights");
  refused({.name = "easgd", .staleness = 2}, "strategy.staleness is for downpour");
  refused({.name = "easgd_async", .adapt_steps = 2}, "strategy.adapt_steps: easgd_async has no");
  refused({.name = "gossip", .delay_compensation = 1}, "strategy.delay_compensation is for downp");
  refused({.name = "downpour", .delay_compensation = -1}, "must not be negative");
  refused({.name = "downpour", .period = 2, .delay_compensation = 1}, "set strategy.period to 1");
  refused({.name = "ad_psgd", .graph = "rnig"}, "strategy.graph: ");
  refused({.name = "ad_psgd", .codec = "bf16"}, "strategy.codec: ad_psgd exchanges weights");
  refused({.name = "sync", .backup = 4}, "strategy.backup = 4 must be from 0 to one less than the");
  refused({.name = "sync", .backup = -1}, "strategy.backup = -1");
  refused({.name = "sync", .period = 2, .backup = 1}, "strategy.period: backup workers exchange");
  refused({.name = "easgd", .backup = 1}, "strategy.backup is for sync");
  for (const char* name : {"easgd", "easgd_async"}) {
    expect_refused([&] { check({.name = name, .beta = 1}, 1); }, Errc::kBadConfig,
                   "the center and the worker change places");
  }
  for (const char* name : names()) check({.name = name}, 4);
  check({.name = "sync", .backup = 3}, 4);
}

TEST(Strategy, SaysWhatARankSends) {
  EXPECT_EQ(describe({.name = "local_sgd", .period = 16}, 4, 1'000'000),
            "local_sgd: 4 workers average their weights every 16 steps; a rank sends 6 MB for it, "
            "0.375 MB a step");
  EXPECT_THAT(
      describe({.name = "gossip", .graph = "ring"}, 8, 1'000'000),
      HasSubstr("a rank sends 8 MB for it, 8 MB a step; mixing rate of the graph ring: 0."));
  EXPECT_THAT(describe({}, 2, 1'000'000), HasSubstr("a rank sends 4 MB a step"));
  EXPECT_THAT(describe({.name = "diloco", .fragments = 4, .codec = "int8:64"}, 2, 1'000'000),
              HasSubstr("before int8:64, in 4 fragments"));
  EXPECT_EQ(describe({.name = "downpour", .staleness = 2}, 4, 1'000'000),
            "downpour: 4 workers add their changes to a shared center after every step; a rank "
            "reads and writes 8 MB for it, 8 MB a step; a worker waits if the slowest one is more "
            "than 2 exchanges behind");
  EXPECT_THAT(describe({.name = "easgd_async"}, 4, 1'000'000),
              HasSubstr("8 MB for it, 1 MB a step; nobody waits; stable while learning rate times "
                        "curvature is below 1.7"));
  EXPECT_THAT(describe({.name = "easgd"}, 4, 1'000'000),
              HasSubstr("workers drift apart as with local_sgd every 32.1 steps"));
  EXPECT_THAT(describe({.name = "ad_psgd"}, 4, 1'000'000),
              HasSubstr("mixing rate of the graph exponential: 0.444"));
  EXPECT_THAT(describe({.backup = 1}, 4, 1'000'000), HasSubstr("a step takes the first 3 of 4"));
}

TEST(Strategy, IsRefusedForWorkersWithDifferentModels) {
  comm::replicate(2, [](const Group& group) {
    const auto make = [&](std::vector<at::Tensor> weights) {
      return make_rule({.name = "local_sgd"},
                       {.workers = group, .world = group, .weights = std::move(weights)});
    };
    expect_refused([&] { make({torch::zeros({3 + group.rank()})}); }, Errc::kInvalidArgument,
                   "the workers of a strategy have different weights: this rank has 1 tensors");
    expect_refused([&] { make({}); }, Errc::kInvalidArgument, "a strategy needs weights");
    expect_refused([&] { make({torch::zeros({3}, torch::kLong)}); }, Errc::kInvalidArgument,
                   "a strategy's weights are float32 or float64, not Long");
  });
}

TEST(Strategy, ResultHasTheMeanOfTheBuffers) {
  comm::replicate(2, [](const Group& group) {
    at::Tensor x = torch::zeros({2}), mean = torch::zeros({2});
    const auto rule =
        make_rule({.name = "local_sgd"},
                  {.workers = group, .world = group, .weights = {x}, .buffers = {mean}});
    mean.fill_(group.rank() == 0 ? 1 : 4);
    EXPECT_EQ(rule->result().buffers[0][1].item<float>(), 2.5F);
    EXPECT_EQ(mean[0].item<float>(), group.rank() == 0 ? 1 : 4);
  });
}

// Otherwise slow_momentum and diloco would go only a part of the way to the loaded weights.
TEST(Strategy, RefusesWeightsThatWereLoadedBehindItsBack) {
  for (const char* name : {"local_sgd", "diloco"}) {
    comm::replicate(2, [&](const Group& group) {
      torch::nn::Linear net(2, 2), saved(2, 2);
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) parameter.zero_();
      for (at::Tensor& parameter : saved->parameters()) parameter.fill_(3);
      const auto rule = make_rule({.name = name, .period = 1},
                                  {.workers = group, .world = group, .weights = net->parameters()});
      rule->after_step({1});
      std::stringstream file;
      torch::save(saved, file);
      torch::load(net, file);
      expect_refused([&] { rule->after_step({2}); }, Errc::kInvalidArgument,
                     "tensor 0 of the strategy's weights got other memory, as by torch::load()");
      rule->restart();
      rule->after_step({3});
      for (const at::Tensor& parameter : net->parameters())
        EXPECT_EQ(parameter.min().item<float>(), 3) << name;
    });
  }
}

// Momentum would move a frozen layer.
TEST(Strategy, RefusesALayerThatWasFrozenAfterItWasMade) {
  for (const char* name : {"local_sgd", "slow_momentum", "diloco", "easgd"}) {
    for (const int freezing : {1, 2}) {
      comm::replicate(2, [&](const Group& group) {
        torch::nn::Linear net(2, 2);
        const auto rule =
            make_rule({.name = name, .period = 1},
                      {.workers = group, .world = group, .weights = net->parameters()});
        rule->after_step({1, 0.1});
        const bool mine = group.rank() < freezing;
        if (mine) net->bias.requires_grad_(false);
        expect_refused(
            [&] {
              rule->after_step({2, 0.1});
            },
            Errc::kInvalidArgument,
            std::string(mine ? "" : "rank 0: ") +
                "tensor 1 of the strategy's weights was frozen or unfrozen since restart()");
        net->bias.requires_grad_(false);
        rule->restart();
        rule->after_step({3, 0.1});
      });
    }
  }
}

// Gossip and asynchronous rules: neighbors of the rank would wait for it until their timeout.
TEST(Strategy, AChangeThatOneRankAloneMakesEndsTheWaitsOfItsNeighbors) {
  const std::vector<std::pair<std::function<void(torch::nn::Linear&)>, std::string>> changes{
      {[](torch::nn::Linear& net) { net->bias.requires_grad_(false); },
       "tensor 1 of the strategy's weights was frozen or unfrozen since restart()"},
      {[](torch::nn::Linear& net) { net->weight.set_data(net->weight.detach().clone()); },
       "tensor 0 of the strategy's weights got other memory"}};
  for (const Strategy& strategy :
       {Strategy{.name = "gossip"}, Strategy{.name = "downpour", .staleness = 0},
        Strategy{.name = "easgd_async", .period = 1, .staleness = 0}}) {
    for (const auto& [change, text] : changes) {
      comm::replicate(
          2,
          [&](const Group& group) {
            torch::nn::Linear net(2, 2);
            const auto rule = make_rule(
                strategy, {.workers = group, .world = group, .weights = net->parameters()});
            if (group.rank() == 0) {
              rule->after_step({1, 0.1});
              change(net);
              expect_refused([&] { rule->after_step({2, 0.1}); }, Errc::kInvalidArgument, text);
            } else {
              const auto steps = [&] {
                for (int step = 1; step <= 2; ++step) rule->after_step({step, 0.1});
              };
              expect_refused(steps, Errc::kAborted, text);
            }
          },
          std::chrono::seconds(20));
    }
  }
}

// A program may give the rule views of its parameters.
TEST(Strategy, AsksWhichWeightsAreTrained) {
  comm::replicate(2, [](const Group& group) {
    bool trains = true;
    const auto rule =
        make_rule({.name = "diloco", .period = 1}, {.workers = group,
                                                    .world = group,
                                                    .weights = {torch::zeros({2})},
                                                    .trains = [&](std::size_t) { return trains; }});
    rule->after_step({1});
    trains = false;
    expect_refused([&] { rule->after_step({2}); }, Errc::kInvalidArgument, "call restart()");
  });
}

}  // namespace
}  // namespace weft::strategy
