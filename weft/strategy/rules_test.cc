// Each rule against its equations, written out for all workers at once.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cmath>
#include <mutex>
#include <vector>

#include "weft/comm/replicate.h"
#include "weft/schedule/gossip.h"
#include "weft/strategy/strategy.h"
#include "weft/strategy/testing/rules.h"

namespace weft::strategy {
namespace rules_test {

TEST(LocalSgd, TakesTheMeanEveryPeriodSteps) {
  const auto seen = train(3, {.name = "local_sgd", .period = 4}, 10);
  const Vectors wanted = reference(3, 10, [](Vectors& x, int step) {
    if (step % 4 == 0) set_all(x, mean_of(x));
  });
  expect_close(seen, wanted);
  expect_close(seen.result, mean_of(wanted));
  EXPECT_FALSE(at::allclose(seen.weights[0], seen.weights[1]));  // two steps since the exchange
}

TEST(LocalSgd, WithPeriodOneIsSynchronousTraining) {
  const auto seen = train(4, {.name = "local_sgd", .period = 1}, 7);
  at::Tensor x = initial();
  for (int step = 0; step < 7; ++step) {
    at::Tensor sum = torch::zeros_like(x);
    for (int worker = 0; worker < 4; ++worker) sum += gradient(x, worker);
    x = x - sum / 4 * kLr;
  }
  for (const at::Tensor& mine : seen.weights) expect_close(mine, x);
}

TEST(LocalSgd, ExchangesAfterEachOfTheFirstSteps) {
  const auto seen = train(2, {.name = "local_sgd", .period = 5, .sync_steps = 3}, 9);
  expect_close(seen, reference(2, 9, [](Vectors& x, int step) {
                 if (step <= 3 || step == 8) set_all(x, mean_of(x));
               }));
}

// The loss is 100 / step: at step 8 its mean since step 4 is 100 * (1/5 + … + 1/8) / 4.
TEST(LocalSgd, ShortensThePeriodAsTheLossFalls) {
  std::vector<std::int64_t> periods;
  train(2, {.name = "local_sgd", .period = 4, .adapt_steps = 4}, 20,
        [&](int worker, int, Rule& rule) {
          if (worker == 0) periods.push_back(rule.period());
        });
  const double first = (1 + 1 / 2. + 1 / 3. + 1 / 4.) / 4,
               second = (1 / 5. + 1 / 6. + 1 / 7. + 1 / 8.) / 4;
  EXPECT_EQ(periods[3], 4);  // the first mean only sets the scale
  EXPECT_EQ(periods[7], static_cast<std::int64_t>(std::ceil(std::sqrt(second / first) * 4)));
  EXPECT_LT(periods[19], periods[7]);
}

TEST(LocalSgd, SendsChangesThroughACodecWhoseErrorIsSentLater) {
  std::vector<at::Tensor> results;
  for (const char* codec : {"none", "topk:0.3"}) {
    comm::replicate(2, [&](const Group& group) {
      at::Tensor x = initial().to(torch::kFloat);
      const auto rule =
          make_rule({.name = "local_sgd", .period = 2, .codec = codec},
                    {.workers = group, .world = group, .weights = {x}, .buffers = {}});
      EXPECT_EQ(rule->state().own.empty(), std::string(codec) == "none");
      for (int step = 1; step <= 200; ++step) {
        x.sub_(gradient(x.to(torch::kDouble), group.rank()).to(torch::kFloat), kLr);
        rule->after_step({step, kLr, 0, 1});
      }
      const at::Tensor& result = rule->result().weights[0];
      if (group.rank() == 0) results.push_back(result.clone());
    });
  }
  EXPECT_FALSE(at::equal(results[0], results[1]));
  EXPECT_LT((results[0] - results[1]).abs().max().item<double>(), 0.1);
}

TEST(SlowMomentum, FollowsAlgorithm1OfThePaper) {
  const auto seen =
      train(3, {.name = "slow_momentum", .period = 3, .lr = 0.8, .momentum = 0.6}, 12);
  at::Tensor anchor = initial(), u = torch::zeros_like(anchor);
  const Vectors wanted = reference(3, 12, [&](Vectors& x, int step) {
    if (step % 3 != 0) return;
    u = 0.6 * u + (anchor - mean_of(x)) / kLr;
    anchor = anchor - 0.8 * kLr * u;
    set_all(x, anchor);
  });
  expect_close(seen, wanted);
}

TEST(SlowMomentum, WithoutMomentumIsLocalSgd) {
  expect_close(train(2, {.name = "slow_momentum", .period = 3, .lr = 1, .momentum = 0}, 9),
               train(2, {.name = "local_sgd", .period = 3}, 9).weights);
}

TEST(DiLoCo, StepsAsTorchsSgdWithNesterovMomentum) {
  const auto seen = train(3, {.name = "diloco", .period = 4}, 16);
  at::Tensor anchor = initial().requires_grad_();
  torch::optim::SGD outer({anchor}, torch::optim::SGDOptions(0.7).momentum(0.9).nesterov(true));
  const Vectors wanted = reference(3, 16, [&](Vectors& x, int step) {
    if (step % 4 != 0) return;
    anchor.mutable_grad() = anchor.detach() - mean_of(x);
    outer.step();
    set_all(x, anchor.detach());
  });
  expect_close(seen, wanted);
}

TEST(DiLoCo, ExchangesFragmentsOneAfterTheOther) {
  std::vector<std::vector<bool>> equal;  // by step: whether the first and the second tensor are
  const Strategy strategy{.name = "diloco", .period = 4, .lr = 1, .momentum = 0, .fragments = 2};
  const auto seen = train(2, strategy, 8);
  expect_close(seen, reference(2, 8, [](Vectors& x, int step) {
                 const at::Tensor mean = mean_of(x);
                 for (at::Tensor& one : x) {
                   if (step % 4 == 2) one = torch::cat({mean.narrow(0, 0, 6), one.narrow(0, 6, 4)});
                   if (step % 4 == 0) one = torch::cat({one.narrow(0, 0, 6), mean.narrow(0, 6, 4)});
                 }
               }));
}

TEST(Easgd, FollowsEquations5And6OfThePaper) {
  const auto seen = train(4, {.name = "easgd", .period = 2, .beta = 0.8}, 11);
  at::Tensor center = initial();
  const Vectors wanted = reference(4, 11, [&](Vectors& x, int step) {
    if (step % 2 != 0) return;
    const at::Tensor mean = mean_of(x);
    for (at::Tensor& one : x) one = one - 0.8 / 4 * (one - center);
    center = 0.2 * center + 0.8 * mean;
  });
  expect_close(seen, wanted);
  expect_close(seen.result, center);
}

// Mean squared distance of a worker from the mean of all, where each step adds noise of its own.
double drift(const Strategy& strategy, int workers) {
  constexpr int kBegin = 96, kEnd = 288;  // multiples of the periods
  double found = 0;
  comm::replicate(workers, [&](const Group& group) {
    const auto seed = static_cast<std::uint64_t>(group.rank());
    const auto noise = at::detail::createCPUGenerator(seed);
    at::Tensor x = torch::zeros({4000}, torch::kDouble), sum = torch::zeros({1}, torch::kDouble);
    const auto rule = make_rule(strategy, {.workers = group, .world = group, .weights = {x}});
    for (int step = 1; step <= kEnd; ++step) {
      x.add_(torch::randn({4000}, noise, torch::kDouble));
      at::Tensor mean = x.clone();
      group.all_reduce(mean, ReduceOp::kAvg);
      if (step > kBegin) sum += (x - mean).square().mean();
      rule->after_step({step, kLr, 0, 1});
    }
    group.all_reduce(sum, ReduceOp::kAvg);
    if (group.rank() == 0) found = sum.item<double>() / (kEnd - kBegin);
  });
  return found;
}

// 3 (1 + q) / (1 - q) = 12.02 for q = (1 - 0.9 / 4)^2: see describe().
TEST(Easgd, LetsWorkersDriftApartAsLocalSgdWithALongerPeriod) {
  const double elastic = drift({.name = "easgd", .period = 3}, 4);
  EXPECT_NEAR(elastic / drift({.name = "local_sgd", .period = 12}, 4), 1, 0.05);
  EXPECT_GT(elastic, 2.5 * drift({.name = "local_sgd", .period = 3}, 4));
}

TEST(Gossip, BringsWorkersTogetherAtTheMixingRateOfItsGraph) {
  for (const char* graph : {"ring", "exponential"}) {
    for (const int workers : {4, 8}) {
      Vectors x(static_cast<std::size_t>(workers));
      const int rounds = 12;
      std::mutex lock;
      comm::replicate(workers, [&](const Group& group) {
        at::Tensor mine = torch::zeros({1}, torch::kDouble);
        const auto rule = make_rule({.name = "gossip", .graph = graph},
                                    {.workers = group, .world = group, .weights = {mine}});
        mine.fill_(group.rank() % 2 == 0 ? 1 : std::cos(group.rank()));
        for (int step = 1; step <= rounds; ++step) rule->after_step({step, kLr, 0, 1});
        const std::lock_guard guard(lock);
        x[static_cast<std::size_t>(group.rank())] = mine.clone();
      });
      double mean = 0, before = 0, after = 0;
      for (int w = 0; w < workers; ++w) mean += (w % 2 == 0 ? 1 : std::cos(w)) / workers;
      for (int w = 0; w < workers; ++w) {
        before += std::pow((w % 2 == 0 ? 1 : std::cos(w)) - mean, 2);
        after += std::pow(x[static_cast<std::size_t>(w)].item<double>() - mean, 2);
      }
      const double rate = schedule::mixing_rate({schedule::parse_graph(graph), workers});
      EXPECT_LE(std::sqrt(after), std::sqrt(before) * std::pow(rate, rounds) * 1.01 + 1e-12)
          << graph << " " << workers;
      EXPECT_GT(std::sqrt(before), 0.1);
    }
  }
}

// Two rounds of four workers: with the next one, then with the one after it.
TEST(Gossip, TakesTheNextNeighborInEachExchangeOfTheFirstSteps) {
  comm::replicate(4, [](const Group& group) {
    at::Tensor mine = torch::zeros({1}, torch::kDouble);
    const auto rule = make_rule(
        {.name = "gossip", .period = 16, .sync_steps = 4, .graph = "one_peer_exponential"},
        {.workers = group, .world = group, .weights = {mine}});
    const auto exchanges_until = [&](int first, int last) {
      int exchanges = 0;
      for (int step = first; step <= last; ++step)
        exchanges += rule->after_step({step, kLr, 0, 1}) ? 1 : 0;
      return exchanges;
    };
    mine.fill_(group.rank());
    EXPECT_EQ(exchanges_until(1, 2), 2);
    EXPECT_EQ(mine.item<double>(), 1.5);
    EXPECT_EQ(exchanges_until(3, 4), 2);
    mine.fill_(group.rank());
    EXPECT_EQ(exchanges_until(5, 36), 2);  // after 20 and 36 steps
    EXPECT_EQ(mine.item<double>(), 1.5);
  });
}

at::Tensor result_of_growth(const Strategy& strategy, int steps) {
  at::Tensor result;
  comm::replicate(2, [&](const Group& group) {
    at::Tensor x = torch::zeros({1000});
    const auto rule =
        make_rule(strategy, {.workers = group, .world = group, .weights = {x}, .buffers = {}});
    for (int step = 1; step <= steps; ++step) {
      x.add_(1);
      rule->after_step({step, kLr, 0, 1});
    }
    const at::Tensor& found = rule->result().weights[0];
    if (group.rank() == 0) result = found.clone();
  });
  return result;
}

TEST(Rules, SendEachWeightInItsTurnThroughRandomK) {
  for (const char* name : {"local_sgd", "slow_momentum", "diloco", "easgd"}) {
    const Strategy strategy{.name = name, .period = 10, .codec = "randomk:0.1"};
    EXPECT_EQ(result_of_growth(strategy, 200).count_nonzero().item<std::int64_t>(), 1000) << name;
  }
}

TEST(LocalSgd, CountsTheWarmUpOfACodecInSteps) {
  const Strategy strategy{.name = "local_sgd", .period = 10, .codec = "randomk:0.1,warmup=20"};
  EXPECT_TRUE(torch::equal(result_of_growth(strategy, 20), torch::full({1000}, 20.0f)));
  const auto moved_after = [&](int steps) {
    return (result_of_growth(strategy, steps) - 20).count_nonzero().item<std::int64_t>();
  };
  EXPECT_EQ(moved_after(30), 100);
  EXPECT_EQ(moved_after(120), 1000);  // each weight once in ten exchanges
}

TEST(Rules, ForgetWhatACodecHasNotSentWhenTheyRestart) {
  for (const char* name : {"local_sgd", "slow_momentum", "diloco", "easgd"}) {
    comm::replicate(2, [&](const Group& group) {
      at::Tensor x = initial().to(torch::kFloat);
      const auto rule =
          make_rule({.name = name, .period = 1, .codec = "topk:0.1"},
                    {.workers = group, .world = group, .weights = {x}, .buffers = {}});
      for (int step = 1; step <= 5; ++step) {
        x.sub_(gradient(x.to(torch::kDouble), group.rank()), kLr);
        rule->after_step({step, kLr, 0, 1});
      }
      rule->restart();
      const at::Tensor first = x.clone();
      for (int step = 6; step <= 25; ++step) rule->after_step({step, kLr, 0, 1});
      EXPECT_TRUE(torch::equal(x, first)) << name;
    });
  }
}

TEST(Rules, LetAWorkerThatIsTornApartContinueFromTheSavedState) {
  for (const char* name : {"local_sgd", "slow_momentum", "diloco", "easgd", "gossip"}) {
    const Strategy strategy{.name = name, .period = 3};
    const auto whole = train(2, strategy, 12);
    // As in a resumed run: weights and state after step 7 go into new objects.
    std::vector<Vectors> weights(2), arrays(2);
    Vectors numbers(2);
    Vectors seen(2);
    std::mutex lock;
    comm::replicate(2, [&](const Group& group) {
      const auto me = static_cast<std::size_t>(group.rank());
      const auto run = [&](at::Tensor& x, Rule& rule, int from, int to) {
        for (int step = from; step <= to; ++step) {
          x.sub_(gradient(x, group.rank()), kLr);
          rule.after_step({step, kLr, 0, 1});
        }
      };
      at::Tensor x = initial();
      const auto rule =
          make_rule(strategy, {.workers = group, .world = group, .weights = {x}, .buffers = {}});
      run(x, *rule, 1, 7);
      at::Tensor y = torch::zeros_like(x);
      const auto other =
          make_rule(strategy, {.workers = group, .world = group, .weights = {y}, .buffers = {}});
      const auto from = rule->state(), to = other->state();
      for (const auto& [array, values] : from.arrays) to.arrays.at(array)[0].copy_(values[0]);
      to.numbers.copy_(from.numbers);
      y.copy_(x);
      run(y, *other, 8, 12);
      const std::lock_guard guard(lock);
      seen[me] = y;
    });
    for (std::size_t worker = 0; worker < 2; ++worker)
      expect_close(seen[worker], whole.weights[worker]);
  }
}

TEST(Rules, TakeAnotherPeriodAlsoWithTheSavedState) {
  comm::replicate(2, [](const Group& group) {
    const auto period_after = [&](const Strategy& strategy) {
      at::Tensor x = initial();
      const auto rule =
          make_rule(strategy, {.workers = group, .world = group, .weights = {x}, .buffers = {}});
      const Rule::State state = rule->state();
      state.numbers[0] = 3;  // the period
      rule->restored();
      return rule->period();
    };
    EXPECT_EQ(period_after({.name = "local_sgd", .period = 5}), 5);
    EXPECT_EQ(period_after({.name = "local_sgd", .period = 5, .adapt_steps = 4}), 3);
  });
}

}  // namespace rules_test
}  // namespace weft::strategy
