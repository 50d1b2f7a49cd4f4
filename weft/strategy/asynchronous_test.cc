// The rules whose workers exchange at their own time, against their equations.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/strategy/strategy.h"
#include "weft/strategy/testing/rules.h"

namespace weft::strategy {
namespace rules_test {

TEST(Downpour, WithStaleness0IsSynchronousTraining) {
  const auto seen = train(3, {.name = "downpour", .staleness = 0}, 20);
  const Vectors wanted = reference(3, 20, [](Vectors& x, int) { set_all(x, mean_of(x)); });
  for (std::size_t i = 0; i < 3; ++i) expect_close(seen.weights[i], wanted[i], 1e-10);
  expect_close(seen.result, wanted[0], 1e-10);
}

TEST(Downpour, KeepsEveryChangeThoughNobodyWaits) {
  // Gradients that do not depend on the weights: the center gets all of them, in any order.
  const int workers = 4, steps = 300;
  comm::replicate(workers, [&](const Group& group) {
    at::Tensor x = torch::zeros({20'000}, torch::kDouble);  // several chunks
    const auto rule =
        make_rule({.name = "downpour"}, {.workers = group, .world = group, .weights = {x}});
    for (int step = 1; step <= steps; ++step) {
      x.add_(group.rank() + 1);
      rule->after_step({step, kLr, 0, 1});
    }
    const at::Tensor& sum = rule->result().weights[0];
    EXPECT_EQ(sum.min().item<double>(), steps * (1 + 2 + 3 + 4) / 4.0);
    EXPECT_EQ(sum.max().item<double>(), steps * (1 + 2 + 3 + 4) / 4.0);
  });
}

TEST(Downpour, AWorkerIsNeverFurtherAheadThanTheBound) {
  for (const std::int64_t bound : {0, 2}) {
    std::vector<std::atomic<int>> done(3);
    std::atomic<int> most{0};
    comm::replicate(3, [&](const Group& group) {
      at::Tensor x = torch::zeros({4});
      const auto rule = make_rule({.name = "downpour", .staleness = bound},
                                  {.workers = group, .world = group, .weights = {x}});
      for (int step = 1; step <= 60; ++step) {
        if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        // Before its exchange, a worker that is done `step` times has not been let ahead.
        done[static_cast<std::size_t>(group.rank())] = step;
        rule->after_step({step, kLr, 0, 1});
        int least = step;
        for (const auto& other : done) least = std::min(least, other.load());
        int seen = most.load();
        while (seen < step - least && !most.compare_exchange_weak(seen, step - least)) {
        }
      }
    });
    EXPECT_LE(most.load(), bound) << bound;
    EXPECT_GE(most.load(), bound > 0 ? 1 : 0);
  }
}

// The claim of the paper of EASGD. From one center, changes times c multiply its distance from an
// optimum of curvature h by 1 - 4 c (1 - (1 - lr h)^period): c is 1 for whole changes, which is
// stable at a period of 1 and not at 16.
TEST(EasgdAsync, IsStableAtPeriodsAtWhichWholeChangesOfDownpourDiverge) {
  const auto farthest = [](Strategy strategy, std::int64_t period) {
    strategy.staleness = 0;
    strategy.period = period;
    return train(4, strategy, 320).result.abs().max().item<double>();
  };
  const Strategy whole{.name = "downpour", .lr = 4};
  EXPECT_LT(farthest(whole, 1), 10);
  EXPECT_GT(farthest(whole, 16), 1000);
  EXPECT_LT(farthest({.name = "downpour"}, 16), 10);
  EXPECT_LT(farthest({.name = "easgd_async"}, 16), 10);
}

TEST(EasgdAsync, MovesCenterAndWorkerByTheSameForce) {
  comm::replicate(2, [&](const Group& group) {
    at::Tensor x = torch::zeros({5}, torch::kDouble);
    const auto rule = make_rule({.name = "easgd_async", .period = 1, .beta = 0.5},
                                {.workers = group, .world = group, .weights = {x}});
    x.fill_(group.rank() == 0 ? 8 : 0);
    if (group.rank() == 0) rule->after_step({1, kLr, 0, 1});  // worker 1 does not take part
    EXPECT_EQ(rule->result().weights[0][0].item<double>(), 2);
    EXPECT_EQ(x[4].item<double>(), group.rank() == 0 ? 6 : 0);
  });
}

TEST(EasgdAsync, TheCenterReachesTheMeanOfTheOptima) {
  const auto seen = train(4, {.name = "easgd_async", .period = 2, .staleness = 0}, 600);
  const at::Tensor best = torch::arange(10, torch::kDouble).mul(0.3).sin() + 1.5;
  expect_close(seen.result, best, 0.2);
}

// Calls act(rule, x) for one worker after the other: `turns` has their numbers.
void in_turn(int workers, const Strategy& strategy, const at::Tensor& first,
             const std::vector<int>& turns,
             const std::function<void(std::size_t turn, at::Tensor& x, Rule& rule)>& act,
             const std::function<void(int worker, const at::Tensor& x, Rule& rule)>& end) {
  comm::replicate(workers, [&](const Group& group) {
    at::Tensor x = first.clone();
    const auto rule = make_rule(strategy, {.workers = group, .world = group, .weights = {x}});
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      if (turns[turn] == group.rank()) act(turn, x, *rule);
      group.barrier();
    }
    end(group.rank(), x, *rule);
  });
}

TEST(Downpour, CorrectsGradientsOfOlderWeightsByEquation10) {
  const at::Tensor c0 = torch::tensor({1.0, -2.0, 0.5}), g1 = torch::tensor({0.3, 0.1, -0.7}),
                   g0 = torch::tensor({-0.4, 2.0, 0.9});
  const double lambda = 1.7;
  // Worker 1 adds first. Worker 0 has computed its gradient from c0, too.
  const at::Tensor c1 = c0 - kLr * g1 / 2, c2 = c1 - kLr * (g0 + lambda * g0 * g0 * (c1 - c0)) / 2;
  in_turn(
      2, {.name = "downpour", .delay_compensation = lambda}, c0, {1, 0},
      [&](std::size_t turn, at::Tensor& x, Rule& rule) {
        x.sub_(turn == 0 ? g1 : g0, kLr);
        rule.after_step({1, kLr, 0, 1});
        expect_close(x, turn == 0 ? c1 : c2, 1e-6);  // float32
      },
      [&](int worker, const at::Tensor&, Rule& rule) {
        const Staleness staleness = rule.staleness();
        EXPECT_EQ(staleness.exchanges(), 1);
        EXPECT_EQ(staleness.counts[worker == 0 ? 1 : 0], 1);
      });
}

TEST(Downpour, CountsTheExchangesOfOthersThatItHasNotSeen) {
  in_turn(
      3, {.name = "downpour"}, torch::zeros({2}), {0, 0, 1, 0, 2, 2},
      [](std::size_t, at::Tensor& x, Rule& rule) {
        x.add_(1);
        rule.after_step({1, kLr, 0, 1});
      },
      [](int worker, const at::Tensor&, Rule& rule) {
        const Staleness seen = rule.staleness();
        const std::vector<std::int64_t> wanted[] = {
            {2, 1, 0, 0, 0}, {0, 0, 1, 0, 0}, {1, 0, 0, 0, 1}};
        for (std::size_t i = 0; i < 5; ++i)
          EXPECT_EQ(seen.counts[i], wanted[worker][i]) << worker << " " << i;
        EXPECT_EQ(seen.largest, worker == 0 ? 1 : worker == 1 ? 2 : 4);
      });
}

TEST(Staleness, HasABucketForEachNumber) {
  Staleness staleness;
  for (const std::int64_t one : {0, 3, 4, 7, 63, 64, 1000}) staleness.add(one);
  EXPECT_EQ(staleness.counts, (std::array<std::int64_t, 9>{1, 0, 0, 1, 2, 0, 0, 1, 2}));
  EXPECT_EQ(staleness.sum, 0 + 3 + 4 + 7 + 63 + 64 + 1000);
  EXPECT_EQ(Staleness::name_of(3), "3");
  EXPECT_EQ(Staleness::name_of(4), "4_7");
  EXPECT_EQ(Staleness::name_of(8), "64_up");
}

TEST(EasgdAsync, WithStaleness0IsTheSynchronousRule) {
  const auto seen = train(4, {.name = "easgd_async", .period = 2, .beta = 0.8, .staleness = 0}, 11);
  const auto wanted = train(4, {.name = "easgd", .period = 2, .beta = 0.8}, 11);
  expect_close(seen, wanted.weights);
  expect_close(seen.result, wanted.result);
}

// One worker and the center on a quadratic loss of curvature 1, with the learning rate `h`.
double distance_after(double h, double alpha, int steps) {
  double x = 1, center = -0.5;
  for (int step = 0; step < steps; ++step) {
    const double pull = alpha * (x - center);
    x = x - h * x - pull;
    center += pull;
  }
  return std::abs(x) + std::abs(center);
}

TEST(EasgdBound, DividesStableFromUnstableLearningRates) {
  for (const double alpha : {0.2, 0.45, 0.9}) {
    const double bound = easgd_bound(alpha, 1, /*asynchronous=*/false);
    EXPECT_LT(distance_after(bound * 0.98, alpha, 3000), 0.1) << alpha;
    EXPECT_GT(distance_after(bound * 1.02, alpha, 3000), 1e3) << alpha;
  }
  EXPECT_DOUBLE_EQ(easgd_bound(1, 1, true), 0);
  EXPECT_NEAR(easgd_bound(1e-12, 8, false), 2, 1e-9);  // that of SGD
  // alpha <= (4 - 2 h) / (4 - h), at h = 1
  EXPECT_NEAR(easgd_bound(2 / 3.0, 1, true), 1, 1e-12);
}

TEST(AdPsgd, AveragesWithANeighborAndThenAddsItsOwnChange) {
  const std::vector<double> wanted = {8, 4, 6};  // of the worker whose turn it was
  in_turn(
      2, {.name = "ad_psgd"}, torch::zeros({3}, torch::kDouble), {0, 0, 1},
      [&](std::size_t turn, at::Tensor& x, Rule& rule) {
        const double changes[] = {8, 0, 2};
        x.add_(changes[turn]);
        rule.after_step({1, kLr, 0, 1});
        EXPECT_EQ(x[1].item<double>(), wanted[turn]);
      },
      [](int, const at::Tensor&, Rule& rule) {
        EXPECT_EQ(rule.result().weights[0][0].item<double>(), (4 + 6) / 2.0);
      });
}

TEST(AdPsgd, KeepsEveryChangeThoughNobodyWaits) {
  const int workers = 4, steps = 200;
  comm::replicate(workers, [&](const Group& group) {
    at::Tensor x = torch::zeros({20'000}, torch::kDouble);  // several chunks
    const auto rule =
        make_rule({.name = "ad_psgd"}, {.workers = group, .world = group, .weights = {x}});
    for (int step = 1; step <= steps; ++step) {
      x.add_(group.rank() + 1);
      rule->after_step({step, kLr, 0, 1});
    }
    const at::Tensor& mean = rule->result().weights[0];
    EXPECT_NEAR(mean.min().item<double>(), steps * (1 + 2 + 3 + 4) / 4.0, 1e-8);
    EXPECT_NEAR(mean.max().item<double>(), steps * (1 + 2 + 3 + 4) / 4.0, 1e-8);
    EXPECT_EQ(rule->staleness().exchanges(), steps);
  });
}

TEST(AdPsgd, NoWorkerReadsTheSumOfAnAverageThatANeighborHasNotDividedYet) {
  comm::replicate(4, [&](const Group& group) {
    at::Tensor x = torch::ones({20'000}, torch::kDouble);
    const auto rule =
        make_rule({.name = "ad_psgd"}, {.workers = group, .world = group, .weights = {x}});
    double most = 1;
    for (int step = 1; step <= 400; ++step) {
      rule->after_step({step, kLr, 0, 1});
      most = std::max(most, x.max().item<double>());
    }
    EXPECT_EQ(most, 1);
    rule->result();
  });
}

// In expectation, the square of the distance shrinks by rate^2 in a round.
TEST(AdPsgd, BringsWorkersTogetherAtTheMixingRateOfItsGraph) {
  for (const char* graph : {"ring", "random_matching"}) {
    const int workers = 8, rounds = 30, count = 40;
    at::Tensor all = torch::zeros({workers, count}, torch::kDouble);
    comm::replicate(workers, [&](const Group& group) {
      at::Tensor x = torch::zeros({count}, torch::kDouble);
      const auto rule = make_rule({.name = "ad_psgd", .graph = graph},
                                  {.workers = group, .world = group, .weights = {x}});
      x.add_(torch::arange(count, torch::kDouble).add(group.rank() * 7).sin());
      for (int round = 0; round <= rounds; ++round) {
        rule->after_step({round + 1, kLr, 0, 1});
        group.barrier();
      }
      all[group.rank()].copy_(rule->state().own.back());
    });
    const double distance = (all - all.mean(0)).norm().item<double>();
    const double rate = pairwise_mixing_rate(graph, workers);
    EXPECT_LT(rate, 0.95);
    // The distance at the start is about 12. One run differs from the expectation.
    EXPECT_LT(distance, 12 * std::pow(rate, 0.6 * rounds)) << graph << ", rate " << rate;
  }
}

TEST(PairwiseMixingRate, IsThatOfTheExpectedMatrix) {
  EXPECT_EQ(pairwise_mixing_rate("ring", 1), 0);
  EXPECT_NEAR(pairwise_mixing_rate("ring", 2), 0, 1e-9);
  for (const int workers : {3, 4, 9}) {
    EXPECT_NEAR(pairwise_mixing_rate("random_matching", workers),
                std::pow(1 - 1.0 / (workers - 1), workers / 2.0), 1e-6);
    EXPECT_NEAR(pairwise_mixing_rate("ring", workers),
                std::pow(1 - (1 - std::cos(2 * M_PI / workers)) / workers, workers / 2.0), 1e-6);
  }
}

// SGD with momentum, whose velocity is its state.
struct Momentum {
  at::Tensor x = initial(), velocity = torch::zeros_like(x);
  void step(const at::Tensor& g) {
    velocity.mul_(0.9).add_(g);
    x.sub_(velocity, kLr);
  }
};

TEST(Backup, LeavesOutTheLateGradientAndItsMomentum) {
  const int workers = 3;
  const at::Tensor late_gradient = torch::full({10}, 100.0, torch::kDouble);
  // Two rounds of workers 0 and 1, then one of workers 1 and 2.
  Momentum wanted;
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 1), std::pair(1, 2)})
    wanted.step((gradient(wanted.x, a) + gradient(wanted.x, b)) / 2);
  comm::replicate(workers, [&](const Group& group) {
    const int me = group.rank();
    Momentum mine;
    const auto rule =
        make_rule({.name = "sync", .backup = 1},
                  {.workers = group, .world = group, .weights = {mine.x}, .optimizer_state = [&] {
                     return std::vector{mine.velocity};
                   }});
    group.barrier();  // else worker 2 may start from a later center, and is not late
    const auto step = [&](const at::Tensor& g) {
      mine.step(g);
      rule->after_step({1, kLr, 0, 1});
    };
    for (int round = 0; round < 2 && me < 2; ++round) step(gradient(mine.x, me));
    group.barrier();
    if (me == 2) step(late_gradient);
    group.barrier();
    if (me > 0) step(gradient(mine.x, me));
    EXPECT_EQ(rule->dropped_steps(), me == 2 ? 1 : 0);
    expect_close(rule->result().weights[0], wanted.x);
    rule->begin(0);  // worker 0 takes what it has missed
    expect_close(mine.x, wanted.x);
    expect_close(mine.velocity, wanted.velocity);
    // Alone, a worker waits for nobody.
    if (me != 1) rule->leave();
    if (me != 1) return;
    Momentum next{wanted.x.clone(), wanted.velocity.clone()};
    step(gradient(mine.x, 1));
    next.step(gradient(next.x, 1));
    expect_close(mine.x, next.x);
  });
}

// As from a checkpoint that has no part of worker 0 for the center.
TEST(Backup, BeginsFromTheLoadedOptimizerStateWhereACheckpointHasNoneForTheCenter) {
  comm::replicate(2, [](const Group& group) {
    Momentum mine;
    const auto rule =
        make_rule({.name = "sync", .backup = 1},
                  {.workers = group, .world = group, .weights = {mine.x}, .optimizer_state = [&] {
                     return std::vector{mine.velocity};
                   }});
    mine.velocity.fill_(3);
    rule->reset_own();
    rule->restored();
    group.barrier();
    rule->begin(7);
    EXPECT_TRUE(torch::equal(mine.velocity, torch::full_like(mine.velocity, 3)));
    rule->leave();
  });
}

}  // namespace rules_test
}  // namespace weft::strategy
